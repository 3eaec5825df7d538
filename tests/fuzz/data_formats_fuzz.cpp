// Formats of data: any bytes, taken for any kind, give records or an Error(data), within bounded
// memory. The first byte chooses the kind and whether one field or whole rows are asked for; the
// rest is the file (of Megatron-LM its index, over a .bin of 4 KiB).

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "data/formats/record_reader.h"

namespace {

namespace fs = std::filesystem;

/// A folder in memory or, where there is none, on disk; one for the process.
class Folder {
 public:
  Folder() {
    const bool is_shared = fs::exists("/dev/shm");
    path_ = (is_shared ? fs::path("/dev/shm") : fs::temp_directory_path()) /
            ("heddle-fuzz-" + std::to_string(::getpid()));
    fs::create_directories(path_);
    std::ofstream(path_ / "x.bin", std::ios::binary) << std::string(4096, '\1');
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void write(const fs::path& path, const std::uint8_t* data, std::size_t size) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using heddle::InputKind;
  constexpr int kMostRecords = 2000;  // a few bytes may stand for very many rows of nothing
  static const Folder folder;
  if (size == 0) return 0;
  const auto kind = static_cast<InputKind>((data[0] >> 1) % 9);
  const bool has_field = (data[0] & 1) != 0;
  const fs::path path = folder.path() / (kind == InputKind::megatron ? "x.idx" : "x");
  write(path, data + 1, size - 1);
  const heddle::InputFile file{.path = path, .kind = kind, .size_bytes = size - 1};
  try {
    const auto reader = heddle::open_records(file, {.field = has_field ? "text" : ""});
    heddle::Record record;
    for (int i = 0; i < kMostRecords && reader->next(record); ++i) {
      if (record.form == heddle::Record::Form::tokens) continue;
      if (reader->position() > size + 1024) std::abort();
      (void)heddle::record_text(record, file, "text").has_value();
    }
  } catch (const heddle::Error& e) {
    if (e.code() != heddle::ErrorCode::data) std::abort();
  }
  return 0;
}
