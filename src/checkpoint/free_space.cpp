#include "checkpoint/free_space.h"

#include "base/error.h"
#include "base/strings.h"

namespace heddle {
namespace {

/// Headers, index, manifest, and blocks of the file system.
constexpr std::uint64_t kOverheadBytes = 1 << 20;

}  // namespace

void require_free_space(FileSystem& files, const std::filesystem::path& folder,
                        std::uint64_t bytes) {
  const std::uint64_t needed = bytes + kOverheadBytes;
  const std::uint64_t free = files.free_bytes(folder);
  if (free >= needed) return;
  throw Error(ErrorCode::resources,
              fmt::format("writing to {} needs {}, but only {} are free", folder.string(),
                          format_bytes(static_cast<double>(needed)),
                          format_bytes(static_cast<double>(free))),
              "free disk space, keep fewer checkpoints or choose another folder");
}

}  // namespace heddle
