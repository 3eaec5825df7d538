#include "engine/train_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/softmax_xent.h"
#include "tensor/transfer.h"

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
    : model_(model), optimizer_(optimizer), stream_(stream), memory_(memory) {
  model_.store().run_in_background(model_.plan().overlap);
  if (!model_.plan().divides_vocabulary_over_pp()) return;
  vocabulary_ = std::make_unique<VocabularyPasses>(
      model_, VocabularyPasses::Gradients{
                  .begin = [this](int unit) { model_.store().begin_grads(unit, stream_); },
                  .end = [this](int unit) { end_grads(unit); }});
}

const Schedule& TrainStep::schedule(int microbatches) {
  if (schedule_.microbatches != microbatches || schedule_.by_rank.empty()) {
    schedule_ = model_.plan().step_schedule(microbatches);
  }
  return schedule_;
}

void TrainStep::begin(std::span<const MicroBatch> microbatches) {
  saved_.clear();
  saved_.resize(microbatches.size());
  weights_done_.clear();
  result_ = {};
  // Ranks of tp and pp have the same targets.
  Memory host = memory_.for_host();
  const Tensor targets = host.alloc({1}, DType::f64, MemoryTag::communication);
  if (!stream_.is_dry())
    targets.host<double>()[0] = static_cast<double>(count_targets(microbatches));
  model_.mesh().sum(targets, kTokenAxes, stream_);
  result_.targets = stream_.is_dry() ? 1 : static_cast<std::int64_t>(targets.host<double>()[0]);
  microbatches_.clear();
  for (const MicroBatch& batch : microbatches) {
    microbatches_.push_back(model_.upload(batch, stream_, memory_));
  }
  sums_ = memory_.alloc({2}, DType::f64, MemoryTag::communication);
  ops::fill(sums_, 0.0, stream_);
  model_.store().retire_grads();
}

void TrainStep::end() {
  microbatches_.clear();
  args_ = {};
  const Tensor sums = to_host(std::exchange(sums_, {}), stream_);
  if (stream_.is_dry()) return;
  model_.mesh().check();
  const auto values = sums.host<double>();
  result_.loss = values[1] / static_cast<double>(std::max<std::int64_t>(1, result_.targets));
  result_.grad_norm = std::sqrt(values[0]);
  result_.is_finite = std::isfinite(result_.loss) && std::isfinite(result_.grad_norm);
}

StepResult TrainStep::run(std::span<const MicroBatch> microbatches, const StepArgs& args,
                          double clip) {
  begin(microbatches);
  updates_ = true;
  args_ = args;
  clip_ = clip;
  execute(schedule(static_cast<int>(microbatches.size())), model_.mesh().comm(Axis::pp), *this,
          stream_, on_action_);
  end();
  return result_;
}

StepResult TrainStep::gradients(std::span<const MicroBatch> microbatches) {
  begin(microbatches);
  updates_ = false;
  execute(schedule(static_cast<int>(microbatches.size())), model_.mesh().comm(Axis::pp), *this,
          stream_);
  end();
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

Saved& TrainStep::saved(int unit, int microbatch) {
  return saved_[static_cast<std::size_t>(microbatch)].child(unit);
}

Tensor TrainStep::boundary(int microbatch) {
  const MicroBatch& batch = microbatches_[static_cast<std::size_t>(microbatch)];
  return memory_.alloc(model_.boundary_shape(batch.tokens()), model_.dtype(),
                       MemoryTag::activations);
}

Tensor TrainStep::forward(int stage, int microbatch, const Tensor& x) {
  Ctx ctx = context(microbatch);
  const auto [units, first, labels] = model_.stage(stage);
  Tensor y = x;
  for (int i = 0; i < static_cast<int>(units.size()); ++i) {
    Layer& layer = *units[static_cast<std::size_t>(i)];
    const int unit = first + i;
    model_.store().acquire(unit, i + 1 < static_cast<int>(units.size()) ? unit + 1 : -1, stream_);
    if (layer.adds_gradients_in_forward()) model_.store().begin_grads(unit, stream_);
    y = layer.forward(y, saved(unit, microbatch), ctx);
    if (on_unit_) on_unit_(labels[static_cast<std::size_t>(i)], microbatch, Pass::forward, y);
    model_.store().release(unit);
    if (layer.adds_gradients_in_forward()) end_grads(unit);
  }
  if (vocabulary_ || stage + 1 < model_.plan().stages()) return y;
  ops::add_sum(y, sums_.slice(0, 1, 2), stream_);
  return {};
}

Tensor TrainStep::backward_input(int stage, int microbatch, const Tensor& dy) {
  Ctx ctx = context(microbatch);
  const auto [units, first, labels] = model_.stage(stage);
  Tensor gradient = dy;
  for (int i = static_cast<int>(units.size()) - 1; i >= 0; --i) {
    const int unit = first + i;
    model_.store().acquire(unit, i > 0 ? unit - 1 : -1, stream_);
    gradient =
        units[static_cast<std::size_t>(i)]->backward_input(gradient, saved(unit, microbatch), ctx);
    model_.store().release(unit);
    if (on_unit_) {
      on_unit_(labels[static_cast<std::size_t>(i)], microbatch, Pass::backward, gradient);
    }
  }
  return gradient;
}

void TrainStep::backward_weight(int stage, int microbatch) {
  Ctx ctx = context(microbatch);
  const auto [units, first, labels] = model_.stage(stage);
  for (int i = static_cast<int>(units.size()) - 1; i >= 0; --i) {
    Layer& layer = *units[static_cast<std::size_t>(i)];
    if (layer.adds_gradients_in_forward()) continue;
    const int unit = first + i;
    model_.store().begin_grads(unit, stream_);
    layer.backward_weight(saved(unit, microbatch), ctx);
    end_grads(unit);
  }
  check_nothing_saved(stage, microbatch);
}

Tensor TrainStep::backward(int stage, int microbatch, const Tensor& dy) {
  Ctx ctx = context(microbatch);
  const auto [units, first, labels] = model_.stage(stage);
  Tensor gradient = dy;
  for (int i = static_cast<int>(units.size()) - 1; i >= 0; --i) {
    Layer& layer = *units[static_cast<std::size_t>(i)];
    const int unit = first + i;
    const bool has_gradients = layer.adds_gradients_in_forward();
    model_.store().acquire(unit, i > 0 ? unit - 1 : -1, stream_);
    if (!has_gradients) model_.store().begin_grads(unit, stream_);
    gradient = layer.backward(gradient, saved(unit, microbatch), ctx);
    model_.store().release(unit);
    if (on_unit_) {
      on_unit_(labels[static_cast<std::size_t>(i)], microbatch, Pass::backward, gradient);
    }
    if (!has_gradients) end_grads(unit);
  }
  check_nothing_saved(stage, microbatch);
  return gradient;
}

void TrainStep::vocabulary_pass(Act act, int microbatch) {
  Ctx ctx = context(microbatch);
  const Tensor losses = vocabulary_->pass(act, microbatch, ctx);
  if (losses.defined()) ops::add_sum(losses, sums_.slice(0, 1, 2), stream_);
}

void TrainStep::begin_exchange(Exchange exchange, int microbatch, const Tensor& given) {
  Ctx ctx = context(microbatch);
  vocabulary_->begin(exchange, microbatch, given, ctx);
}

Tensor TrainStep::end_exchange(Exchange exchange, int microbatch) {
  Ctx ctx = context(microbatch);
  return vocabulary_->end(exchange, microbatch, ctx);
}

void TrainStep::end_grads(int unit) {
  const auto at = static_cast<std::size_t>(unit);
  if (weights_done_.size() <= at) weights_done_.resize(at + 1, 0);
  const bool is_last = ++weights_done_[at] == static_cast<int>(microbatches_.size());
  model_.store().end_grads(unit, is_last, stream_);
}

void TrainStep::check_nothing_saved(int stage, int microbatch) {
  const auto [units, first, labels] = model_.stage(stage);
  for (int i = 0; i < static_cast<int>(units.size()); ++i) {
    HEDDLE_CHECK(saved(first + i, microbatch).empty(),
                 "micro-batch {} left something saved in stage {}", microbatch, stage);
  }
}

void TrainStep::reduce_grads() {
  model_.store().finish_grads(stream_);
  model_.store().add_counted_squares(sums_.slice(0, 0, 1), stream_);
  model_.mesh().sum(sums_, kStepAxes, stream_);
}

void TrainStep::step() {
  if (!updates_) return;
  if (before_update_) before_update_();
  args_.clip = memory_.alloc({1}, DType::f32, MemoryTag::workspace);
  ops::clip_factor(sums_, clip_, args_.clip, stream_);
  optimizer_.step(model_.store().shards(), args_, stream_);
  model_.store().finish_step(stream_);
}

}  // namespace heddle
