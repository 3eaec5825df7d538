#include "data/formats/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace heddle {

FileBytes::FileBytes(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    fail(ErrorCode::data, "cannot read {}: {}", path.string(), std::strerror(errno));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileBytes::~FileBytes() { ::close(descriptor_); }

std::string FileBytes::read(std::uint64_t at, std::size_t size) const {
  std::string bytes(size, '\0');
  read_into(at, bytes);
  return bytes;
}

void FileBytes::read_into(std::uint64_t at, std::span<char> out) const {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = ::pread(descriptor_, out.data() + filled, out.size() - filled,
                                static_cast<off_t>(at + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail(ErrorCode::data, "cannot read {} at byte {}: {}", path_.string(), at + filled,
           got == 0 ? "it has become shorter" : std::strerror(errno));
    }
    filled += static_cast<std::size_t>(got);
  }
}

void ByteCursor::refuse(const std::string& why) const { refuse_damaged(name_, what_, why); }

void refuse_damaged(const std::string& name, const char* format, const std::string& why) {
  throw Error(ErrorCode::data, fmt::format("{}: damaged {}: {}", name, format, why),
              "get or write the file again");
}

}  // namespace heddle
