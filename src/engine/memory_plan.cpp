#include "engine/memory_plan.h"

#include <algorithm>
#include <vector>

#include "engine/train_step.h"
#include "ops/attention.h"

namespace heddle {

namespace {

/// What a layer's attention takes beside tensors.
std::size_t attention_bytes(const ModelSpec& spec, DType dtype, const ParallelPlan& plan,
                            const BatchShape& batch, const StepPlace& place) {
  if (place.device.kind != Device::Kind::cuda || dtype != DType::bf16) return 0;
  const std::int64_t heads = spec.heads / plan.mesh.size(Axis::tp);
  const auto bytes = place.deterministic ? ops::stored_score_bytes : ops::query_sum_bytes;
  return bytes(batch.sequences, batch.seq_len, heads, spec.head_dim);
}

}  // namespace

StepPlan plan_step(const ModelSpec& spec, const BuildOptions& options, const ParallelPlan& plan,
                   int rank, const BatchShape& batch, const StepPlace& place) {
  Memory memory(Memory::Mode::dry, place.device), host = memory.for_host();
  Stream stream = Stream::dry(place.device);
  const Mesh mesh = Mesh::recorded(plan.mesh, rank);
  Model model(spec, options, plan, mesh, ParamStore::Purpose::training, memory);
  AdamW optimizer{AdamWConfig{}};
  TrainStep step(model, optimizer, stream, memory);
  // Operations check ids and positions also when they compute nothing, so these few bytes are real.
  const auto ids = [&] {
    const Tensor zeros = host.alloc({batch.sequences, batch.seq_len}, DType::i32, MemoryTag::data);
    std::ranges::fill(zeros.host<std::int32_t>(), 0);
    return zeros;
  };
  std::vector<MicroBatch> batches;
  batches.reserve(static_cast<std::size_t>(batch.microbatches));
  for (int i = 0; i < batch.microbatches; ++i) {
    batches.push_back({.ids = ids(), .targets = ids(), .positions = ids(), .first_key = ids()});
  }
  StepPlan result;
  result.before_step = memory.stats().live;
  step.run(batches, {}, 1.0);
  const MemoryStats stats = memory.stats();
  result.memory = {stats.at_peak, stats.peak, stats.reserved};
  const std::size_t beside = attention_bytes(spec, options.dtype, plan, batch, place);
  result.memory.at_peak[static_cast<std::size_t>(MemoryTag::workspace)] += beside;
  result.memory.peak += beside;
  result.memory.reserved += beside;
  result.traffic = mesh.traffic();
  return result;
}

MemoryPlan plan_training_memory(const ModelSpec& spec, const BuildOptions& options,
                                std::int64_t sequences, std::int64_t seq_len, int microbatches) {
  return plan_step(spec, options, single_rank_plan(spec), 0,
                   {.sequences = sequences, .seq_len = seq_len, .microbatches = microbatches})
      .memory;
}

}  // namespace heddle
