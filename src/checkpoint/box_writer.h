#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/layout.h"

namespace heddle {

/// Writes boxes of tensors to their places in the files of a checkpoint, which others write to at
/// the same time, each his own boxes. The files exist, with their headers (staging.h).
class BoxWriter {
 public:
  BoxWriter(FileSystem& files, std::filesystem::path folder, const CheckpointLayout& layout);

  /// What comes before the tensors, of all files: for one of the writers.
  void write_headers();
  /// `box` lies in host memory, contiguous, with the dtype of the layout.
  void write(const std::string& kind, const std::string& name, const Shape& begin,
             const Tensor& box);
  /// Makes what was written durable. Returns the files with the parts of them that this writer
  /// wrote.
  std::vector<FileRecord> finish();

 private:
  struct OpenFile {
    std::unique_ptr<WritableFile> file;  // once something is written to it
    std::vector<FilePart> parts;         // neighbours are joined
    std::unique_ptr<Checksum> last;      // of the last part, which may grow
  };
  OpenFile& open(std::size_t file);
  void write(OpenFile& file, const FilePart& part, std::span<const std::byte> bytes);

  FileSystem& files_;
  const std::filesystem::path folder_;
  const CheckpointLayout& layout_;
  std::vector<OpenFile> open_;  // as the layout's
};

}  // namespace heddle
