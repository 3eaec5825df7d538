#include "base/scratch_folder.h"

#include <cstdlib>

#include "base/error.h"

namespace heddle {

ScratchFolder::ScratchFolder() {
  std::error_code error;
  std::string pattern = (std::filesystem::temp_directory_path(error) / "heddle-XXXXXX").string();
  if (error || ::mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::resources, "cannot make a temporary folder like " + pattern,
                "set TMPDIR to a writable folder");
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace heddle
