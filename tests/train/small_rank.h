#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "comm/threads/thread_world.h"
#include "engine/train_step.h"
#include "model/registry.h"

namespace heddle {

inline constexpr std::int64_t kSequences = 4, kSeqLen = 12, kVocab = 50;

/// Small enough for many meshes, large enough for three pipeline ranks; a vocabulary that tp does
/// not divide, and fewer key heads than tp ranks.
inline ModelSpec small_spec() {
  return model_spec(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
      "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})"),
                    "config");
}

struct TestMesh {
  const char* name;
  int ranks;
  ParallelRequest request;
  Compression compress = {};
};

/// One rank of a training run on a mesh, its data a function of the step.
class Rank {
 public:
  Rank(const TestMesh& mesh, World& world, const OptimizerConfig& optimizer = {},
       const ModelSpec& spec = small_spec())
      : plan_(make_plan(spec, mesh.request, world.size(), kSeqLen, needs_whole_matrices(optimizer),
                        mesh.compress)),
        mesh_(plan_.mesh, world.all()),
        model_(spec, {.positions = kSeqLen}, plan_, mesh_, ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(optimizer, model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {}

  Model& model() { return model_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }

  void before_update(std::function<void()> wait) { step_.before_update(std::move(wait)); }

  double train(std::int64_t step) {
    const std::int64_t own = kSequences / mesh_.size(Axis::dp);
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < own; ++i) {
      const auto key =
          static_cast<std::uint64_t>(step * kSequences + mesh_.coord(Axis::dp) * own + i);
      batches.push_back(plain_batch(ids(2 * key), ids(2 * key + 1), 0, memory_));
    }
    return step_.run(batches, {.lr = 1e-2, .step = step + 1}, 1.0).loss;
  }

 private:
  Tensor ids(std::uint64_t key) {
    const Tensor made = memory_.alloc({1, kSeqLen}, DType::i32, MemoryTag::data);
    std::uint64_t i = 0;
    for (auto& id : made.host<std::int32_t>()) {
      id = static_cast<std::int32_t>(random_u64(key, i++) % kVocab);
    }
    return made;
  }

  Memory memory_;
  Stream stream_{1};
  ParallelPlan plan_;
  Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
};

}  // namespace heddle
