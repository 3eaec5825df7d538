#include "train/saving.h"

#include "base/clock.h"
#include "checkpoint/retention.h"
#include "train/companions.h"

namespace heddle {

namespace fs = std::filesystem;

void Saving::resumed_from(const fs::path& folder, std::int64_t step) {
  newest_ = folder;
  newest_step_ = step;
}

observe::CheckpointDurable Saving::save(const RunState& state) {
  const Stopwatch watch;
  const config::CheckpointConfig& config = setup_.config.checkpoint;
  const DType dtype = config.dtype == config::FloatType::bf16 ? DType::bf16 : DType::f32;
  newest_ = save_run(setup_.checkpoints(), state, setup_.identity, session_.model, dtype,
                     checkpoint_companions(setup_.config, setup_.spec, setup_.tokenizer, dtype),
                     setup_.world, session_.memory, session_.stream);
  saved_step_ = newest_step_ = state.step;
  observe::CheckpointDurable durable{.step = state.step, .path = newest_.string()};
  if (!setup_.is_first) return durable;
  for (const auto& entry : fs::recursive_directory_iterator(newest_)) {
    if (entry.is_regular_file()) durable.bytes += entry.file_size();
  }
  durable.seconds = watch.seconds();
  apply_retention(real_file_system(), setup_.checkpoints(),
                  {.keep_last = static_cast<int>(config.keep),
                   .keep_every = config.keep_every,
                   .keep_best = config.best});
  return durable;
}

}  // namespace heddle
