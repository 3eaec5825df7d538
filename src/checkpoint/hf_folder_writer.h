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

/// A file of tensors that follow each other.
struct TensorShard {
  std::string file;
  std::vector<TensorSpec> tensors;
  std::uint64_t size_bytes = 0;  ///< of the tensors
};
/// Divides tensors among `STEM.safetensors`, when all fits into `max_shard_bytes`, or
/// `STEM-00001-of-0000N.safetensors` and so on. They stay in the given order, but within a shard
/// larger elements come first, so that every tensor is aligned to its element size. A tensor is
/// never split; one that is larger than the limit gets a shard of its own.
std::vector<TensorShard> plan_shards(const std::string& stem, std::vector<TensorSpec> tensors,
                                     std::uint64_t max_shard_bytes);
/// The text of model.safetensors.index.json.
std::string shard_index(const std::vector<TensorShard>& shards);
inline constexpr const char* kShardIndexFile = "model.safetensors.index.json";

/// Writes weights and companion files into an existing folder in Hugging Face's form: the
/// shards of plan_shards, with an index when there are several. Holds no tensor data. Each file is
/// durable once written; the folder itself is synced by finish.
class HfFolderWriter {
 public:
  HfFolderWriter(FileSystem& files, std::filesystem::path folder, std::vector<TensorSpec> tensors,
                 std::uint64_t max_shard_bytes = kDefaultMaxShardBytes);

  /// The order in which tensors must be appended.
  const std::vector<TensorSpec>& order() const { return order_; }
  /// As SafetensorsWriter::append.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void append(std::string_view name, const Tensor& tensor);
  void write_companions(const std::vector<TextFile>& companions);

  /// Returns all files written.
  std::vector<FileRecord> finish();

 private:
  SafetensorsWriter& writer_of(std::string_view name);
  void open_next_shard();

  FileSystem& files_;
  std::filesystem::path folder_;
  std::vector<TensorSpec> order_;
  std::vector<TensorShard> shards_;
  std::unordered_map<std::string_view, std::size_t> shard_of_;  // views into shards_
  std::size_t opened_ = 0;                                      // shards begun
  std::optional<SafetensorsWriter> writer_;                     // of shard opened_ - 1
  std::vector<FileRecord> records_;
};

}  // namespace heddle
