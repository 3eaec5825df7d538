#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/train_step.h"
#include "model/registry.h"
#include "support/source_dir.h"

namespace heddle {

/// One model of every family and of every shape of block.
inline const char* const kReferenceModels[] = {
    "gpt2",  "gpt-neox", "gpt-neox-sequential", "llama", "llama-linear-bias", "mistral",
    "qwen2", "qwen3"};

inline ModelSpec reference_spec(const std::string& name) {
  return read_model_spec(source_dir() + "/tests/reference/models/" + name + "/config.json");
}

inline Tensor random_ids(std::int64_t sequences, std::int64_t seq_len, std::int64_t vocab,
                         std::uint64_t seed, Memory& memory) {
  const Tensor ids = memory.alloc({sequences, seq_len}, DType::i32, MemoryTag::data);
  std::uint64_t i = 0;
  for (std::int32_t& id : ids.host<std::int32_t>()) {
    id = static_cast<std::int32_t>(random_u64(seed, i++) % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

/// The bytes of a tensor, comparable and printable even where they are NaN.
inline std::string bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes()), tensor.size_bytes()};
}

/// A model of random weights with all that a step needs.
class Training {
 public:
  Training(const std::string& name, BuildOptions options, const OptimizerConfig& optimizer = {})
      : options_(fill(options)),
        model_(reference_spec(name), options_, ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(optimizer, model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {
    initialize(model_.store(), 5, stream_);
  }

  Model& model() { return model_; }
  TrainStep& step() { return step_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }

  MicroBatch batch(std::int64_t sequences, std::int64_t seq_len, std::uint64_t seed) {
    const std::int64_t vocab = model_.spec().vocab;
    return plain_batch(random_ids(sequences, seq_len, vocab, seed, memory_),
                       random_ids(sequences, seq_len, vocab, seed + 1000, memory_), 0, memory_);
  }

  std::vector<std::string> gradients() const {
    std::vector<std::string> all;
    for (const Parameter* p : model_.store().parameters()) all.push_back(bytes_of(p->grad));
    return all;
  }

 private:
  static BuildOptions fill(BuildOptions options) {
    if (options.positions == 0) options.positions = 32;
    return options;
  }

  Memory memory_;
  Stream stream_{1};
  BuildOptions options_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
};

}  // namespace heddle
