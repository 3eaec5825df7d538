#pragma once

#include <filesystem>

namespace heddle {

/// A new folder among the system's temporary files, removed with all its content when the object
/// goes. Throws Error(resources) when none can be made.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace heddle
