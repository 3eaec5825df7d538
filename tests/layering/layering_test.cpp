// Checks every #include "..." under src/ against src/layers.txt: a folder may include itself, the
// folders named for it, and what those may include.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Allowed = std::map<std::string, std::set<std::string>>;

/// The transitive closure of layers.txt. A folder may name only folders above it in the file, which
/// excludes cycles; a line that does not is returned in `faults`.
Allowed read_layers(const fs::path& file, std::vector<std::string>& faults) {
  Allowed allowed;
  std::ifstream in(file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const auto colon = line.find(':');
    if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
    const std::string folder = line.substr(0, colon);
    std::set<std::string> closure = {folder};
    std::istringstream names(line.substr(colon + 1));
    for (std::string name; names >> name;) {
      if (allowed.count(name) == 0) {
        faults.push_back("layers.txt:" + std::to_string(number) + ": " + folder + " names " + name +
                         ", which is not above it");
        continue;
      }
      closure.insert(allowed[name].begin(), allowed[name].end());
    }
    allowed[folder] = closure;
  }
  return allowed;
}

void check_file(const fs::path& src, const fs::path& file, const Allowed& allowed,
                std::vector<std::string>& faults) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*"([^"]+)\")");
  const fs::path relative = file.lexically_relative(src);
  const std::string folder = relative.begin()->string();
  std::ifstream in(file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, kInclude)) continue;
    const std::string included = match[1].str();
    const std::string target = included.substr(0, included.find('/'));
    const std::string where = relative.string() + ":" + std::to_string(number) + ": ";
    if (allowed.count(target) == 0) {
      faults.push_back(where + "\"" + included + "\" is not rooted at a folder of layers.txt");
    } else if (allowed.at(folder).count(target) == 0) {
      faults.push_back(where + folder + " may not include " + target + " (\"" + included + "\")");
    }
  }
}

std::vector<std::string> layering_faults(const fs::path& src) {
  std::vector<std::string> faults;
  const Allowed allowed = read_layers(src / "layers.txt", faults);
  static const std::set<std::string> kSources = {".h", ".cpp", ".cu", ".cuh", ".in"};
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    const std::string folder = entry.path().lexically_relative(src).begin()->string();
    if (entry.is_directory() && entry.path().parent_path() == src && allowed.count(folder) == 0) {
      faults.push_back(folder + "/ is not in layers.txt");
    }
    if (!entry.is_regular_file() || kSources.count(entry.path().extension().string()) == 0)
      continue;
    if (entry.path().parent_path() == src || allowed.count(folder) == 0) continue;
    check_file(src, entry.path(), allowed, faults);
  }
  std::sort(faults.begin(), faults.end());
  return faults;
}

class PlantedTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    write("layers.txt", "# comment\nbase:\nops: base\nnn:  ops\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& content) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << content;
  }
  fs::path root_;
};

TEST(Layering, SourcesIncludeOnlyWhatLayersAllow) {
  for (const auto& fault : layering_faults(fs::path(source_dir()) / "src")) {
    ADD_FAILURE() << fault;
  }
}

TEST(Layering, SourcesAreFound) {
  std::vector<std::string> faults;
  const auto allowed = read_layers(fs::path(source_dir()) / "src/layers.txt", faults);
  EXPECT_TRUE(allowed.count("cli") == 1 && allowed.at("cli").count("base") == 1);
}

TEST_F(PlantedTree, AllowsWhatAnAllowedFolderMayInclude) {
  write("nn/linear.cpp",
        "#include <vector>\n#include \"base/error.h\"\n#include \"nn/linear.h\"\n");
  EXPECT_TRUE(layering_faults(root_).empty());
}

TEST_F(PlantedTree, NamesFileAndLineOfAViolation) {
  write("base/error.cpp", "#include \"base/error.h\"\n\n  #  include \"ops/gemm.h\"\n");
  EXPECT_EQ(
      layering_faults(root_),
      std::vector<std::string>{"base/error.cpp:3: base may not include ops (\"ops/gemm.h\")"});
}

TEST_F(PlantedTree, RefusesIncludesNotRootedAtSrc) {
  write("ops/cpu/gemm.cpp", "#include \"gemm.h\"\n");
  EXPECT_EQ(layering_faults(root_),
            std::vector<std::string>{
                "ops/cpu/gemm.cpp:1: \"gemm.h\" is not rooted at a folder of layers.txt"});
}

TEST_F(PlantedTree, RefusesAFolderThatIsNotListedAndATableThatIsNotOrdered) {
  write("layers.txt", "base: ops\nops:\n");
  write("extra/a.cpp", "");
  EXPECT_EQ(layering_faults(root_),
            (std::vector<std::string>{"extra/ is not in layers.txt",
                                      "layers.txt:1: base names ops, which is not above it"}));
}

}  // namespace
}  // namespace heddle
