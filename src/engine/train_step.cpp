#include "engine/train_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "engine/executor.h"
#include "ops/softmax_xent.h"
#include "optim/clip.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

std::int64_t count_targets(std::span<const MicroBatch> microbatches) {
  std::int64_t count = 0;
  for (const MicroBatch& batch : microbatches) {
    count += std::ranges::count_if(batch.targets.host<std::int32_t>(), [](std::int32_t target) {
      return target != ops::kIgnoreTarget;
    });
  }
  return count;
}

}  // namespace

TrainStep::TrainStep(Model& model, Optimizer& optimizer, Stream& stream, Memory& memory)
    : model_(model), optimizer_(optimizer), stream_(stream), memory_(memory) {}

void TrainStep::begin(std::span<const MicroBatch> microbatches) {
  microbatches_ = microbatches;
  saved_.clear();
  saved_.resize(microbatches.size());
  loss_sum_ = 0.0;
  result_ = {.targets = stream_.is_dry() ? 1 : count_targets(microbatches)};
  model_.store().retire_grads();
}

StepResult TrainStep::run(std::span<const MicroBatch> microbatches, const StepArgs& args,
                          double clip) {
  begin(microbatches);
  args_ = args;
  clip_ = clip;
  const Schedule schedule = lower(
      make_schedule("1f1b", {.ranks = 1, .microbatches = static_cast<int>(microbatches.size())}));
  execute(schedule, 0, *this, on_action_);
  return result_;
}

StepResult TrainStep::gradients(std::span<const MicroBatch> microbatches) {
  begin(microbatches);
  execute(
      make_schedule("1f1b", {.ranks = 1, .microbatches = static_cast<int>(microbatches.size())}), 0,
      *this);
  reduce_grads();
  return result_;
}

Ctx TrainStep::context(int microbatch) {
  // A step whose targets are all ignored has a loss of 0 and no gradient.
  const auto targets = static_cast<double>(std::max<std::int64_t>(1, result_.targets));
  return {.stream = stream_,
          .memory = memory_,
          .batch = microbatches_[static_cast<std::size_t>(microbatch)],
          .keeps_saved = true,
          .loss_scale = 1.0 / targets};
}

Saved& TrainStep::saved(int microbatch, std::size_t unit) {
  return saved_[static_cast<std::size_t>(microbatch)].child(static_cast<int>(unit));
}

void TrainStep::forward(int microbatch) {
  Ctx ctx = context(microbatch);
  Tensor x = ctx.batch.ids;
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    x = model_.units()[unit]->forward(x, saved(microbatch, unit), ctx);
  }
  if (stream_.is_dry()) return;
  const auto losses = x.host<double>();
  loss_sum_ = std::accumulate(losses.begin(), losses.end(), loss_sum_);
}

void TrainStep::backward_input(int microbatch) {
  Ctx ctx = context(microbatch);
  Tensor gradient;
  for (std::size_t unit = model_.units().size(); unit-- > 0;) {
    gradient = model_.units()[unit]->backward_input(gradient, saved(microbatch, unit), ctx);
  }
}

void TrainStep::backward_weight(int microbatch) {
  Ctx ctx = context(microbatch);
  for (std::size_t unit = model_.units().size(); unit-- > 0;) {
    model_.units()[unit]->backward_weight(saved(microbatch, unit), ctx);
  }
  HEDDLE_CHECK(saved_[static_cast<std::size_t>(microbatch)].empty(),
               "micro-batch {} left something saved", microbatch);
}

void TrainStep::backward(int microbatch) {
  Ctx ctx = context(microbatch);
  Tensor gradient;
  for (std::size_t unit = model_.units().size(); unit-- > 0;) {
    gradient = model_.units()[unit]->backward(gradient, saved(microbatch, unit), ctx);
  }
  HEDDLE_CHECK(saved_[static_cast<std::size_t>(microbatch)].empty(),
               "micro-batch {} left something saved", microbatch);
}

void TrainStep::reduce_grads() {
  model_.store().finish_grads(stream_);
  result_.loss = loss_sum_ / static_cast<double>(std::max<std::int64_t>(1, result_.targets));
  result_.grad_norm = global_grad_norm(model_.store().shards(), stream_);
  result_.is_finite = std::isfinite(result_.loss) && std::isfinite(result_.grad_norm);
}

void TrainStep::step() {
  if (!result_.is_finite) return;
  args_.grad_scale = clip_scale(result_.grad_norm, clip_);
  optimizer_.step(model_.store().shards(), args_, stream_);
}

}  // namespace heddle
