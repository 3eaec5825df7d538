// `make demo` compiles the sources of a folder as one file (HEDDLE_UNITY), in which their unnamed
// namespaces are one, and any header may stand before them. The other builds do not, so this looks
// for what would collide there.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// What a line at the left margin defines, if two of the same are an error: the name of a type or
/// constant, the signature of a function.
std::optional<std::string> definition(const std::string& line) {
  static const std::regex kType(R"(^(?:struct|class|enum class|enum) (\w+)[^;]*$)");
  static const std::regex kConstant(
      R"(^(?:inline )?const(?:expr|init)? [^(]*?(\w+)(?: = |\{|\[).*)");
  static const std::regex kFunction(R"(^[A-Za-z][\w:<>,&* ]* [&*]?(\w+\([^{;]*\)) \{.*)");
  std::smatch found;
  for (const std::regex* kind : {&kType, &kConstant, &kFunction}) {
    if (std::regex_match(line, found, *kind)) return found[1].str();
  }
  return std::nullopt;
}

/// Of a file's unnamed namespaces.
std::vector<std::string> unnamed_definitions(const fs::path& file) {
  std::vector<std::string> found;
  std::ifstream in(file);
  bool is_unnamed = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "namespace {") is_unnamed = true;
    if (line == "}  // namespace") is_unnamed = false;
    if (!is_unnamed) continue;
    if (auto name = definition(line)) found.push_back(std::move(*name));
  }
  return found;
}

/// Whether a file's first namespace is heddle itself, none within it.
bool is_in_outer_namespace(const fs::path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("namespace ")) return line == "namespace heddle {";
  }
  return false;
}

std::set<std::string> types_of_headers(const fs::path& folder) {
  std::set<std::string> types;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".h" || !is_in_outer_namespace(entry.path())) continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      const auto name = definition(line);
      if (name && name->find('(') == std::string::npos) types.insert(*name);
    }
  }
  return types;
}

/// What unnamed namespaces of the folder define and a header of `all` too.
std::vector<std::string> names_of_headers(const fs::path& folder,
                                          const std::set<std::string>& all) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp" || !is_in_outer_namespace(entry.path())) continue;
    for (const std::string& name : unnamed_definitions(entry.path())) {
      if (!all.contains(name)) continue;
      found.push_back(entry.path().lexically_relative(folder).string() + ": " + name);
    }
  }
  return found;
}

std::vector<std::string> collisions(const fs::path& folder) {
  std::map<std::string, std::set<std::string>> files_by_definition;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp") continue;
    for (const std::string& name : unnamed_definitions(entry.path())) {
      files_by_definition[name].insert(entry.path().lexically_relative(folder).string());
    }
  }
  std::vector<std::string> found;
  for (const auto& [name, files] : files_by_definition) {
    if (files.size() < 2) continue;
    std::string text = folder.filename().string() + ": " + name + " in";
    for (const std::string& file : files) text += " " + file;
    found.push_back(text);
  }
  return found;
}

TEST(UnityNames, AreDefinedOnceInAFolder) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(source_dir()) / "src")) {
    // The files of ops are never compiled together.
    if (!entry.is_directory() || entry.path().filename() == "ops") continue;
    ++folders;
    for (const std::string& text : collisions(entry.path())) ADD_FAILURE() << text;
  }
  EXPECT_GT(folders, 15);
}

TEST(UnityNames, AreNotThoseOfHeaders) {
  const fs::path source = fs::path(source_dir()) / "src";
  const std::set<std::string> headers = types_of_headers(source);
  EXPECT_GT(headers.size(), 200U);
  for (const std::string& text : names_of_headers(source, headers)) ADD_FAILURE() << text;
}

TEST(UnityNames, OfTypesConstantsAndFunctionsAreSeen) {
  const fs::path folder = fs::path(testing::TempDir()) / "unity_names" / "planted";
  fs::create_directories(folder);
  const std::string own =
      "namespace {\nstruct Sizes {\n};\nconstexpr double kGib = 1;\nint sum(int a) {\n}\n"
      "void run(const A& a) {\n}\n}  // namespace\n";
  std::ofstream(folder / "a.cpp") << own << "int outside(int a) {\n}\n";
  std::ofstream(folder / "b.cpp") << std::regex_replace(own, std::regex("const A& a"), "const B& b")
                                  << "int outside(int a) {\n}\n";
  EXPECT_EQ(collisions(folder), (std::vector<std::string>{"planted: Sizes in a.cpp b.cpp",
                                                          "planted: kGib in a.cpp b.cpp",
                                                          "planted: sum(int a) in a.cpp b.cpp"}));
  std::ofstream(folder / "c.cpp") << "namespace heddle {\nnamespace {\nclass Decoder {\n";
  std::ofstream(folder / "d.h") << "namespace heddle {\nclass Decoder {\n";
  std::ofstream(folder / "e.h") << "namespace heddle::inner {\nclass Sizes {\n";
  EXPECT_EQ(names_of_headers(folder, types_of_headers(folder)),
            (std::vector<std::string>{"c.cpp: Decoder"}));
  fs::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace heddle
