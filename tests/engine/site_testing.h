#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codec/registry.h"
#include "comm/threads/thread_world.h"
#include "engine/engine_testing.h"
#include "parallel/exchange/outer_steps.h"

namespace heddle {

using Weights = std::map<std::string, std::vector<float>>;

inline constexpr std::int64_t kLength = 12;
inline constexpr int kSequences = 2;  // of a site in a step

inline ModelSpec spec() { return reference_spec("llama"); }

/// One rank of sites that train apart. The data of a step depend on the site alone.
class SiteRank {
 public:
  SiteRank(const ParallelRequest& request, const OuterPolicy& outer, World& world,
           const OptimizerConfig& optimizer = {}, const ModelSpec& model = spec())
      : plan_(planned(request, outer, world.size(), optimizer, model)),
        mesh_(plan_.mesh, world.all()),
        model_(model, {.positions = kLength}, plan_, mesh_, ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(optimizer, model_.store())),
        outer_(model_.store(), model_.units(), plan_.policy.outer),
        step_(model_, *optimizer_, stream_, memory_, &outer_) {
    initialize(model_.store(), 5, stream_);
  }

  static ParallelPlan planned(const ParallelRequest& request, const OuterPolicy& outer, int ranks,
                              const OptimizerConfig& optimizer = {},
                              const ModelSpec& model = spec()) {
    ParallelPlan plan = make_plan(model, request, ranks, kLength, needs_whole_matrices(optimizer));
    plan.policy.outer = outer;
    return plan;
  }

  void start() { outer_.start(stream_); }
  double train(std::int64_t step) {
    const int replicas = mesh_.size(Axis::dp);
    std::vector<MicroBatch> batches;
    for (int i = mesh_.coord(Axis::dp); i < kSequences; i += replicas) {
      batches.push_back(batch(step, mesh_.coord(Axis::site), i, memory_));
      // As a run has it: memory plans count it.
      batches.back().first_key = memory_.zeros({1, kLength}, DType::i32, MemoryTag::data);
    }
    return step_.run(batches, {.lr = 1e-2, .step = step}, 1.0).loss;
  }
  void run(const std::vector<MicroBatch>& batches, double lr, double clip) {
    step_.run(batches, {.lr = lr}, clip);
  }

  static MicroBatch batch(std::int64_t step, int site, int sequence, Memory& memory) {
    const auto key = static_cast<std::uint64_t>((step * 10 + site) * 10 + sequence);
    const std::int64_t vocab = spec().vocab;
    return plain_batch(random_ids(1, kLength, vocab, 2 * key, memory),
                       random_ids(1, kLength, vocab, 2 * key + 1, memory), 0, memory);
  }

  /// By name, what this rank holds of a state, or of the weights (-1).
  Weights held(int state) {
    Weights all;
    for (const auto& stretch : model_.store().held()) {
      const Tensor& from =
          state < 0 ? stretch.value : stretch.states[static_cast<std::size_t>(state)];
      const auto values = from.host<float>();
      all[stretch.parameter->parts.front().name] = {values.begin(), values.end()};
    }
    return all;
  }
  int state(const std::string& name) {
    const auto& states = model_.store().states();
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i].name == name) return static_cast<int>(i);
    }
    return -2;
  }
  Weights outer_weights() { return held(state("outer")); }

  Model& model() { return model_; }
  OuterSteps& outer() { return outer_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  Memory memory_;
  Stream stream_{1};
  const ParallelPlan plan_;
  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  OuterSteps outer_;
  TrainStep step_;
};

inline OuterPolicy with_codec(OuterPolicy policy, const std::string& codec) {
  policy.codec = codec::make_codec(codec);
  return policy;
}

inline const OuterPolicy kPlain{.every = 3, .lr = 0.7, .momentum = 0.9};
inline const OuterPolicy kStreaming{
    .every = 4, .fragments = 2, .delay = 1, .mix = 0.5, .lr = 0.4, .momentum = 0.9};

/// The largest relative difference of a tensor.
inline double distance(const Weights& a, const Weights& b) {
  double worst = 0;
  for (const auto& [name, values] : a) {
    double squares = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      squares += std::pow(static_cast<double>(values[i]) - b.at(name)[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    worst = std::max(worst, std::sqrt(squares / norm));
  }
  return worst;
}

}  // namespace heddle
