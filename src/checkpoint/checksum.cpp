#include "checkpoint/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace heddle {

struct Checksum::State {
  XXH64_state_t* xxh = XXH64_createState();
  State() {
    HEDDLE_CHECK(xxh != nullptr, "no memory for a checksum");
    XXH64_reset(xxh, 0);
  }
  ~State() { XXH64_freeState(xxh); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH64_update(state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH64_digest(state_->xxh); }

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

std::string checksum_text(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

HashingFile::HashingFile(FileSystem& files, const std::filesystem::path& path)
    : file_(files.create(path)) {
  record_.path = path.filename().string();
}

void HashingFile::append(std::span<const std::byte> bytes) {
  file_->append(bytes);
  checksum_.update(bytes);
  record_.size_bytes += bytes.size();
}

FileRecord HashingFile::finish() {
  file_->sync();
  file_->close();
  record_.checksum = checksum_.value();
  return record_;
}

FileRecord write_durable_file(FileSystem& files, const std::filesystem::path& path,
                              std::string_view content) {
  HashingFile file(files, path);
  file.append(std::as_bytes(std::span(content)));
  return file.finish();
}

}  // namespace heddle
