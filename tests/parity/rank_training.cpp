#include "parity/rank_training.h"

#include <algorithm>

#include "base/rng.h"
#include "model/registry.h"
#include "ops/softmax_xent.h"
#include "support/source_dir.h"

namespace heddle {

namespace {

/// With the sums that the model needs, and behind them those that only the policy has.
ParallelPlan with(StepPolicy policy, ParallelPlan plan) {
  std::vector<StepSum> sums = std::move(plan.policy.sums);
  const auto usual = static_cast<std::ptrdiff_t>(StepPolicy::usual_sums().size());
  sums.insert(sums.end(), policy.sums.begin() + usual, policy.sums.end());
  policy.sums = std::move(sums);
  plan.policy = std::move(policy);
  return plan;
}

}  // namespace

ModelSpec deep_spec(const std::string& name, std::int64_t layers) {
  ModelSpec spec =
      read_model_spec(source_dir() + "/tests/reference/models/" + name + "/config.json");
  spec.layers = layers;
  return spec;
}

std::vector<ModelSpec> grid_specs() {
  ModelSpec wide = deep_spec("llama", 4);
  wide.heads = 8;
  return {deep_spec("gpt2", 4),  deep_spec("gpt-neox", 5), deep_spec("llama-linear-bias", 4),
          deep_spec("qwen2", 5), deep_spec("qwen3", 4),    wide};
}

RankTraining::RankTraining(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch,
                           World& world, const OptimizerConfig& optimizer, const StepPolicy& policy)
    : world_(world),
      plan_(with(policy, make_plan(spec, mesh.request, world.size(), batch.seq_len,
                                   needs_whole_matrices(optimizer), mesh.compress))),
      mesh_(plan_.mesh, world.all()),
      model_(spec, build_options(mesh, batch), plan_, mesh_, ParamStore::Purpose::training,
             memory_),
      optimizer_(make_optimizer(optimizer, model_.store())),
      step_(model_, *optimizer_, stream_, memory_) {
  initialize(model_.store(), 5, stream_);
  const int first = mesh_.coord(Axis::dp) * batch.microbatches;
  for (int i = 0; i < batch.microbatches; ++i) {
    batches_.push_back(this->batch(batch, static_cast<std::uint64_t>(first + i)));
  }
}

BuildOptions RankTraining::build_options(const MeshCase& mesh, const BatchShape& batch) {
  // Chunks that do not divide the tokens.
  BuildOptions options{.dtype = mesh.dtype,
                       .positions = batch.seq_len,
                       .recompute_blocks = mesh.recompute,
                       .loss_chunk = 16};
  if (mesh.mlp_tokens > 0) options.mlp_tokens = mesh.mlp_tokens;
  return options;
}

void RankTraining::pack(int microbatch, const std::vector<std::int64_t>& documents) {
  const MicroBatch& batch = batches_[static_cast<std::size_t>(microbatch)];
  const auto positions = batch.positions.host<std::int32_t>();
  const auto first_key = batch.first_key.host<std::int32_t>();
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    for (std::int64_t i = begin; i < begin + length; ++i) {
      positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i - begin);
      first_key[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(begin % batch.seq_len());
    }
    begin += length;
  }
}

MicroBatch RankTraining::batch(const BatchShape& shape, std::uint64_t index) {
  const auto numbers = [&](std::uint64_t stream, std::int64_t below) {
    const Tensor made =
        memory_.alloc({shape.sequences, shape.seq_len}, DType::i32, MemoryTag::data);
    std::uint64_t i = 0;
    for (std::int32_t& number : made.host<std::int32_t>()) {
      number = static_cast<std::int32_t>(random_u64(100 * index + stream, i++) %
                                         static_cast<std::uint64_t>(below));
    }
    return made;
  };
  MicroBatch made{.ids = numbers(0, model_.spec().vocab),
                  .targets = numbers(1, model_.spec().vocab),
                  .positions = numbers(2, 1),
                  .first_key = numbers(2, 1)};
  std::int32_t position = 0;
  for (std::int32_t& p : made.positions.host<std::int32_t>()) {
    p = position++ % static_cast<std::int32_t>(shape.seq_len);
  }
  made.targets.host<std::int32_t>()[index % 5] = ops::kIgnoreTarget;
  return made;
}

}  // namespace heddle
