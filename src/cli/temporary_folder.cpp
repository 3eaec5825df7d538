#include "cli/temporary_folder.h"

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace heddle::cli {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "heddle-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::resources, "cannot make a folder like " + pattern,
                "set TMPDIR to a folder you may write to");
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace heddle::cli
