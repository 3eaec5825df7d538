#include "engine/memory_plan.h"

#include <algorithm>
#include <vector>

#include "engine/train_step.h"

namespace heddle {

MemoryPlan plan_training_memory(const ModelSpec& spec, const BuildOptions& options,
                                std::int64_t sequences, std::int64_t seq_len, int microbatches) {
  Memory memory(Memory::Mode::dry);
  Stream stream = Stream::dry();
  Model model(spec, options, ParamStore::Purpose::training, memory);
  AdamW optimizer{AdamWConfig{}};
  TrainStep step(model, optimizer, stream, memory);
  // Operations check ids and positions also when they compute nothing, so these few bytes are real.
  const auto ids = [&] {
    const Tensor zeros = memory.alloc({sequences, seq_len}, DType::i32, MemoryTag::data);
    std::ranges::fill(zeros.host<std::int32_t>(), 0);
    return zeros;
  };
  std::vector<MicroBatch> batches;
  batches.reserve(static_cast<std::size_t>(microbatches));
  for (int i = 0; i < microbatches; ++i) {
    batches.push_back({.ids = ids(), .targets = ids(), .positions = ids(), .first_key = ids()});
  }
  step.run(batches, {}, 1.0);
  const MemoryStats stats = memory.stats();
  return {stats.at_peak, stats.peak, stats.reserved};
}

}  // namespace heddle
