#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine_testing.h"

namespace heddle {

/// Steps of one of two ranks that share every block: what they tell each other of their speed.
class SharedBlocks {
 public:
  static constexpr int kMicrobatches = 2, kBlocks = 2;

  SharedBlocks(World& world, Device device)
      : memory_(device),
        stream_(1, device),
        spec_(reference_spec("llama")),
        plan_(make_plan(spec_, {.dp = 1, .tp = 2}, 2, kLength)),
        mesh_(plan_.mesh, world.all()),
        model_(spec_, {.positions = kLength}, plan_, mesh_, ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(AdamWConfig(), model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {
    initialize(model_.store(), 5, stream_);
  }

  TrainStep& step() { return step_; }
  Stream& stream() { return stream_; }
  /// From now on this rank comes so much later to every exchange of the forward of a block.
  void be_late(std::chrono::milliseconds delay) {
    mesh_.flight().set_hook([delay](const CommCall& call) {
      if (call.group_name == "tp" && call.tag.what == std::string_view("F") && call.tag.unit &&
          call.tag.unit->starts_with("block")) {
        std::this_thread::sleep_for(delay);
      }
      return true;
    });
  }

  /// Of another step.
  std::vector<double> block_seconds() {
    Memory host;
    const Tensor ids = random_ids(1, kLength, spec_.vocab, 1, host);
    const std::vector<MicroBatch> batches(kMicrobatches, plain_batch(ids, ids, 0, host));
    return step_.run(batches, {.lr = 1e-3, .step = ++steps_}, 1.0).block_seconds;
  }

 private:
  static constexpr std::int64_t kLength = 8;

  Memory memory_;
  Stream stream_;
  const ModelSpec spec_;
  const ParallelPlan plan_;
  Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
  std::int64_t steps_ = 0;
};

}  // namespace heddle
