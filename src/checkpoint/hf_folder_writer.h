#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors_writer.h"

namespace heddle {

inline constexpr std::uint64_t kDefaultMaxShardBytes = 5'000'000'000;

/// Writes weights and companion files into an existing folder in Hugging Face's form: one
/// `model.safetensors` when all fits into `max_shard_bytes`, else
/// `model-00001-of-0000N.safetensors` and so on with an index. A tensor is never split; one that is
/// larger than the limit gets a shard of its own. Holds no tensor data. Each file is durable once
/// written; the folder itself is synced by finish.
class HfFolderWriter {
 public:
  HfFolderWriter(FileSystem& files, std::filesystem::path folder, std::vector<TensorSpec> tensors,
                 std::uint64_t max_shard_bytes = kDefaultMaxShardBytes);

  /// The order in which tensors must be appended: as given, but within a shard larger elements come
  /// first, so that every tensor is aligned to its element size.
  const std::vector<TensorSpec>& order() const { return order_; }
  /// As SafetensorsWriter::append.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void append(std::string_view name, const Tensor& tensor);
  void write_companion(const TextFile& companion);

  /// Returns all files written.
  std::vector<FileRecord> finish();

 private:
  struct Shard {
    std::string file;
    std::vector<TensorSpec> tensors;
    std::uint64_t size_bytes = 0;
  };
  SafetensorsWriter& writer_of(std::string_view name);
  void open_next_shard();
  void write_index();

  FileSystem& files_;
  std::filesystem::path folder_;
  std::vector<TensorSpec> order_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string_view, std::size_t> shard_of_;  // views into shards_
  std::size_t opened_ = 0;                                      // shards begun
  std::optional<SafetensorsWriter> writer_;                     // of shard opened_ - 1
  std::vector<FileRecord> records_;
};

}  // namespace heddle
