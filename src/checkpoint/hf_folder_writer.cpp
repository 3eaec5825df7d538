#include "checkpoint/hf_folder_writer.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/json.h"

namespace heddle {

std::vector<TensorShard> plan_shards(const std::string& stem, std::vector<TensorSpec> tensors,
                                     std::uint64_t max_shard_bytes) {
  std::vector<TensorShard> shards(1);
  for (TensorSpec& tensor : tensors) {
    const std::uint64_t size = tensor.size_bytes();
    if (!shards.back().tensors.empty() && shards.back().size_bytes + size > max_shard_bytes) {
      shards.emplace_back();
    }
    shards.back().size_bytes += size;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    TensorShard& shard = shards[i];
    shard.file = shards.size() == 1
                     ? stem + ".safetensors"
                     : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size());
    std::stable_sort(shard.tensors.begin(), shard.tensors.end(), [](const auto& a, const auto& b) {
      return safetensors_bits(a.dtype_name) > safetensors_bits(b.dtype_name);
    });
  }
  return shards;
}

std::string shard_index(const std::vector<TensorShard>& shards) {
  nlohmann::json weight_map = nlohmann::json::object();  // sorted, as Hugging Face writes it
  std::uint64_t total_bytes = 0;
  for (const TensorShard& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) weight_map[tensor.name] = shard.file;
    total_bytes += shard.size_bytes;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

HfFolderWriter::HfFolderWriter(FileSystem& files, std::filesystem::path folder,
                               std::vector<TensorSpec> tensors, std::uint64_t max_shard_bytes)
    : files_(files),
      folder_(std::move(folder)),
      shards_(plan_shards("model", std::move(tensors), max_shard_bytes)) {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorSpec& tensor : shards_[i].tensors) {
      HEDDLE_CHECK(shard_of_.emplace(tensor.name, i).second, "tensor {} declared twice",
                   tensor.name);
      order_.push_back(tensor);
    }
  }
}

void HfFolderWriter::open_next_shard() {
  if (writer_) records_.push_back(writer_->finish());
  const TensorShard& shard = shards_[opened_++];
  writer_.emplace(files_, folder_ / shard.file, shard.tensors);
}

SafetensorsWriter& HfFolderWriter::writer_of(std::string_view name) {
  const auto at = shard_of_.find(name);
  HEDDLE_CHECK(at != shard_of_.end(), "tensor {} was not declared", name);
  while (opened_ <= at->second) open_next_shard();
  return *writer_;
}

void HfFolderWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  writer_of(name).append(name, bytes);
}

void HfFolderWriter::append(std::string_view name, const Tensor& tensor) {
  writer_of(name).append(name, tensor);
}

void HfFolderWriter::write_companions(const std::vector<TextFile>& companions) {
  std::ranges::move(write_text_files(files_, folder_, companions), std::back_inserter(records_));
}

std::vector<FileRecord> HfFolderWriter::finish() {
  while (opened_ < shards_.size()) open_next_shard();
  records_.push_back(writer_->finish());
  if (shards_.size() > 1) {
    records_.push_back(write_durable_file(files_, folder_ / kShardIndexFile, shard_index(shards_)));
  }
  files_.sync_directory(folder_);
  return std::move(records_);
}

}  // namespace heddle
