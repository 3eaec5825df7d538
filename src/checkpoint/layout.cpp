#include "checkpoint/layout.h"

#include "base/check.h"
#include "checkpoint/state_source.h"

namespace heddle {

CheckpointLayout::CheckpointLayout(const std::vector<KeptTensor>& tensors,
                                   std::uint64_t max_shard_bytes, const std::string& stem) {
  std::map<std::string, std::vector<TensorSpec>> by_kind;
  std::map<std::string, const KeptTensor*> by_key;
  for (const KeptTensor& tensor : tensors) {
    const std::string key = state_key(tensor.kind, tensor.name);
    by_kind[tensor.kind].push_back(tensor_spec(key, tensor.dtype, tensor.shape));
    HEDDLE_CHECK(by_key.emplace(key, &tensor).second, "{} is kept twice", key);
  }
  for (auto& [kind, specs] : by_kind) {
    const bool is_weights = kind == kWeightsKind;
    const auto shards = plan_shards(is_weights ? stem : kind, std::move(specs), max_shard_bytes);
    if (is_weights && shards.size() > 1) index_ = shard_index(shards);
    for (const TensorShard& shard : shards) {
      const std::map<std::string, std::string> metadata = {{"format", "pt"}};
      File file{.path = is_weights ? shard.file : "optimizer/" + shard.file,
                .header = safetensors_header_bytes(
                    shard.tensors, is_weights ? metadata : std::map<std::string, std::string>{})};
      std::uint64_t at = file.header.size();
      for (const TensorSpec& spec : shard.tensors) {
        const KeptTensor& tensor = *by_key.at(spec.name);
        places_[{tensor.kind, tensor.name}] = {
            .file = files_.size(), .at = at, .dtype = tensor.dtype, .shape = tensor.shape};
        at += spec.size_bytes();
      }
      file.size_bytes = at;
      files_.push_back(std::move(file));
    }
  }
}

std::uint64_t CheckpointLayout::size_bytes() const {
  std::uint64_t bytes = index_.size();
  for (const File& file : files_) bytes += file.size_bytes;
  return bytes;
}

const CheckpointLayout::Place& CheckpointLayout::place(const std::string& kind,
                                                       const std::string& name) const {
  const auto at = places_.find({kind, name});
  HEDDLE_CHECK(at != places_.end(), "{} {} has no place in the checkpoint", kind, name);
  return at->second;
}

}  // namespace heddle
