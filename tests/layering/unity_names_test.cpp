// `make demo` compiles the sources of a folder as one file (HEDDLE_UNITY), in which their unnamed
// namespaces are one. The other builds do not, so this looks for what would collide there.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

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

std::vector<std::string> collisions(const fs::path& folder) {
  std::map<std::string, std::set<std::string>> files_by_definition;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp") continue;
    std::ifstream in(entry.path());
    bool is_unnamed = false;
    for (std::string line; std::getline(in, line);) {
      if (line == "namespace {") is_unnamed = true;
      if (line == "}  // namespace") is_unnamed = false;
      if (!is_unnamed) continue;
      if (const auto name = definition(line)) {
        files_by_definition[*name].insert(entry.path().lexically_relative(folder).string());
      }
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
  for (const auto& entry : fs::directory_iterator(fs::path(HEDDLE_SOURCE_DIR) / "src")) {
    // The files of ops are never compiled together.
    if (!entry.is_directory() || entry.path().filename() == "ops") continue;
    ++folders;
    for (const std::string& text : collisions(entry.path())) ADD_FAILURE() << text;
  }
  EXPECT_GT(folders, 15);
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
  fs::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace heddle
