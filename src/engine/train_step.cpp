#include "engine/train_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/gate.h"
#include "ops/reduce.h"
#include "ops/softmax_xent.h"
#include "parallel/step/rank_times.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

constexpr int kFirstCopyTag = 1 << 20;  // behind those of messages between stages

std::int64_t count_targets(const MicroBatch& batch) {
  return std::ranges::count_if(batch.targets.host<std::int32_t>(),
                               [](std::int32_t target) { return target != ops::kIgnoreTarget; });
}

}  // namespace

TrainStep::TrainStep(Model& model, Optimizer& optimizer, Stream& stream, Memory& memory,
                     OuterSteps* outer, const CopyExchange& copies)
    : model_(model),
      optimizer_(optimizer),
      outer_(outer),
      copies_(copies),
      stream_(stream),
      memory_(memory) {
  model_.store().run_in_background(model_.plan().overlap);
  model_.mesh().comm(Axis::site).run_in_background(model_.plan().overlap);
  if (model_.plan().divides_vocabulary_over_pp()) {
    vocabulary_ = std::make_unique<VocabularyPasses>(model_);
  }
  if (const auto& experts = model_.spec().experts) {
    last_load_ = memory_.zeros({model_.spec().expert_layers(), experts->count + 2}, DType::f64,
                               MemoryTag::communication);
  }
}

const Schedule& TrainStep::schedule(int microbatches) {
  if (schedule_.microbatches != microbatches || schedule_.by_rank.empty()) {
    schedule_ = step_schedule(model_.plan(), microbatches);
  }
  return schedule_;
}

void TrainStep::begin(std::span<const MicroBatch> microbatches) {
  saved_.clear();
  saved_.resize(microbatches.size());
  result_ = {};
  Memory host = memory_.for_host();
  for (const StepSum& sum : policy_.sums) {
    const bool is_first = sum.when == StepSum::When::first;
    numbers_.push_back(
        (is_first ? host : memory_).alloc({sum.numbers}, DType::f64, MemoryTag::communication));
    if (!is_first) ops::fill(numbers_.back(), 0.0, stream_);
  }
  microbatches_.clear();
  is_decided_ = is_read_ = false;
  if (blocks_) blocks_->begin_step();
  std::int64_t targets = 0, tokens = 0;
  const std::int64_t first_number = first_microbatch_.value_or(
      std::int64_t{model_.mesh().coord(Axis::dp)} * std::ssize(microbatches));
  for (const MicroBatch& whole : microbatches) {
    MicroBatch own = model_.share(whole, host);
    own.number = first_number + std::ssize(microbatches_);
    targets += count_targets(own);
    tokens += own.tokens();
    microbatches_.push_back(model_.upload(own, stream_, memory_));
  }
  if (!stream_.is_dry()) {
    const auto counts = numbers_[StepPolicy::kTargets].host<double>();
    counts[0] = static_cast<double>(targets);
    if (counts.size() > 1) counts[1] = static_cast<double>(tokens);
  }
  model_.store().retire_grads();
  if (!copies_.is_anything() || !policy_.updates) return;
  is_given_.clear();
  for (const RankUnits::Bucket& bucket : model_.units().buckets) {
    is_given_.push_back(!bucket.trains);
  }
  expects_copies_ = copies_.kept != nullptr;
}

void TrainStep::end() {
  microbatches_.clear();
  args_ = {};
  if (last_load_.defined()) ops::copy(expert_load(), last_load_, stream_);
  const Tensor sums = to_host(std::exchange(numbers_, {})[StepPolicy::kTotals], stream_);
  const Tensor load = last_load_.defined() ? to_host(last_load_, stream_) : Tensor();
  if (stream_.is_dry()) return;
  if (blocks_) last_block_seconds_ = blocks_->seconds();
  if (load.defined()) read_load(load.host<double>());
  model_.mesh().check();
  read_totals(sums.host<double>());
  // Not before: a kernel that is used for the first time waits for the device to be idle, and
  // messages between GPUs would keep it busy.
  model_.mesh().comm(Axis::pp).connect_neighbours();
  model_.mesh().comm(Axis::cp).connect_groups();
}

void TrainStep::read_totals(std::span<const double> values) {
  is_read_ = true;
  result_.is_warming_up = policy_.reduces;
  result_.loss =
      values[StepPolicy::kLosses] / static_cast<double>(std::max<std::int64_t>(1, result_.targets));
  result_.grad_norm = std::sqrt(values[StepPolicy::kSquares] * squares_factor());
  result_.is_asked = values[StepPolicy::kAsking] > 0.0;
  result_.is_finite = std::isfinite(result_.loss) && std::isfinite(result_.grad_norm);
  const RankTimes times(model_.mesh().shape());
  const auto of_ranks = values.subspan(RankTimes::first(), static_cast<std::size_t>(times.count()));
  result_.block_seconds.assign(of_ranks.begin(), of_ranks.end());
  if (policy_.updates && result_.is_finite) {
    const auto own = static_cast<std::size_t>(times.behind());
    const auto behind = static_cast<std::size_t>(policy_.stage_squares);
    optimizer_.look_at_totals(values.subspan(own, values.size() - own - behind), step_);
  }
}

void TrainStep::read_load(std::span<const double> load) {
  result_.expert_load.assign(load.begin(), load.end());
  find_bad_router();
}

void TrainStep::find_bad_router() {
  const auto is_nan = [](double count) { return std::isnan(count); };
  const auto bad = std::ranges::find_if(result_.expert_load, is_nan);
  result_.bad_router = bad == result_.expert_load.end()
                           ? -1
                           : (bad - result_.expert_load.begin()) / last_load_.size(1);
  if (result_.bad_router < 0) return;
  // A mark and no count: the next step's losses go by what was counted.
  std::ranges::replace_if(result_.expert_load, is_nan, 0.0);
  set_last_load(result_.expert_load);
}

StepResult TrainStep::run(std::span<const MicroBatch> microbatches, bool updates) {
  policy_ = model_.plan().policy;
  policy_.updates = updates;
  if (updates) optimizer_.adapt(policy_, args_.step);
  step_ = args_.step;
  begin(microbatches);
  if (outer_ != nullptr && updates) policy_.step = outer_->next_step();
  execute(schedule(static_cast<int>(microbatches.size())), model_.units(), policy_,
          model_.mesh().comm(Axis::pp), *this, stream_, on_action_);
  end();
  return result_;
}

StepResult TrainStep::run(std::span<const MicroBatch> microbatches, const StepArgs& args,
                          double clip) {
  args_ = args;
  clip_ = clip;
  return run(microbatches, true);
}

void TrainStep::set_last_load(std::span<const double> load) {
  if (load.empty() || !last_load_.defined()) return;
  HEDDLE_CHECK(static_cast<std::int64_t>(load.size()) == last_load_.count(),
               "the load of {} experts for {}", load.size(), last_load_.shape().text());
  Memory host = memory_.for_host();
  const Tensor staged = host.alloc(last_load_.shape(), DType::f64, MemoryTag::workspace);
  std::ranges::copy(load, staged.host<double>().begin());
  ops::copy(staged, last_load_, stream_);
}

StepResult TrainStep::gradients(std::span<const MicroBatch> microbatches) {
  return run(microbatches, false);
}

Ctx TrainStep::context(int microbatch) {
  // A step whose targets are all ignored has a loss of 0, and no gradient but that of routers.
  const auto targets = static_cast<double>(std::max<std::int64_t>(1, result_.targets));
  return {.stream = stream_,
          .memory = memory_,
          .batch = microbatches_[static_cast<std::size_t>(microbatch)],
          .keep = Keep::all,
          .loss_scale = 1.0 / targets,
          .router_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, tokens_)),
          .step = step_,
          .expert_load = expert_load(),
          .last_load = last_load_,
          .on_choices = on_choices_ ? &on_choices_ : nullptr,
          .idle = &model_.store().offered()};
}

Tensor TrainStep::expert_load() const {
  if (!last_load_.defined()) return {};
  return numbers_[StepPolicy::kExpertLoad].view(last_load_.shape());
}

Tensor TrainStep::boundary(int microbatch) {
  const MicroBatch& batch = microbatches_[static_cast<std::size_t>(microbatch)];
  return memory_.alloc(model_.boundary_shape(batch.tokens()), model_.dtype(),
                       MemoryTag::activations);
}

Tensor TrainStep::compute(const StepOp& op, const Tensor& given) {
  const Act act = op.action->act;
  const int microbatch = op.action->microbatch;
  if (act != Act::f && exchanges_copies_early()) expect_copies();
  tag(symbol(act), op.what, op.action);
  Ctx ctx = context(microbatch);
  const Tensor losses_at = total(StepPolicy::kLosses);
  if (is_vocabulary(act)) {
    const Tensor losses = vocabulary_->pass(act, microbatch, ctx);
    if (losses.defined()) ops::add_sum(losses, losses_at, stream_);
    return {};
  }
  Layer& layer = model_.unit(op.what);
  Saved& saved = saved_[static_cast<std::size_t>(microbatch)].child(op.what);
  Tensor made = pass(op, given, saved, ctx);
  model_.store().offered().end_pass(stream_);
  if (on_unit_ && act != Act::w) {
    on_unit_(*model_.label(op.what), microbatch, act == Act::f ? Pass::forward : Pass::backward,
             made);
  }
  const bool is_done =
      act == Act::bw || act == Act::w || (act == Act::b && layer.adds_gradients_in_forward());
  HEDDLE_CHECK(!is_done || saved.empty(), "micro-batch {} left something saved in {}", microbatch,
               *model_.label(op.what));
  if (act != Act::f || !model_.is_head(op.what)) return made;
  ops::add_sum(made, losses_at, stream_);
  return {};
}

Tensor TrainStep::pass(const StepOp& op, const Tensor& given, Saved& saved, Ctx& ctx) {
  Layer& layer = model_.unit(op.what);
  const Act act = op.action->act;
  if (model_.is_left_out(op.what)) return act == Act::w ? Tensor() : given;
  const bool is_timed = blocks_ && model_.is_block(op.what);
  if (is_timed) blocks_->begin_pass();
  const Tensor made = pass(layer, act, given, saved, ctx);
  if (is_timed) blocks_->end_pass(act == Act::f);
  return made;
}

Tensor TrainStep::pass(Layer& layer, Act act, const Tensor& given, Saved& saved, Ctx& ctx) {
  switch (act) {
    case Act::f: return layer.forward(given, saved, ctx);
    case Act::b: return layer.backward_input(given, saved, ctx);
    case Act::w: layer.backward_weight(saved, ctx); return {};
    default: return layer.backward(given, saved, ctx);
  }
}

void TrainStep::perform(const StepOp& op) {
  ParamStore& store = model_.store();
  switch (op.kind) {
    case StepOp::Kind::norm: return add_totals();
    case StepOp::Kind::sum: return sum(op.what);
    case StepOp::Kind::update: return update();
    case StepOp::Kind::outer_begin:
    case StepOp::Kind::outer_end:
      tag("outer weights", -1, nullptr);
      return outer_->perform(op, stream_);
    // Residuals are states that change here already.
    case StepOp::Kind::reduce:
      if (before_update_ && store.keeps_residuals()) before_update_();
      break;
    default: break;
  }
  const bool is_of_values = op.kind <= StepOp::Kind::drop || op.kind >= StepOp::Kind::gather;
  const int unit =
      op.what < 0 ? -1 : model_.units().buckets[static_cast<std::size_t>(op.what)].owner;
  tag(is_of_values ? "values" : "gradients", unit, op.action);
  store.perform(op, stream_);
  if (is_final(op)) give_to_keeper(op.what);
}

void TrainStep::tag(const char* what, int unit, const Action* action) {
  const bool is_of_one = action != nullptr && is_computation(action->act);
  model_.mesh().flight().set_tag({.what = what,
                                  .unit = unit < 0 ? nullptr : model_.label(unit),
                                  .microbatch = is_of_one ? action->microbatch : -1});
}

std::shared_ptr<const std::string> TrainStep::entry(const Action& action) const {
  const auto [first, count] = model_.units().stages[static_cast<std::size_t>(action.stage)];
  return count == 0 ? nullptr
                    : model_.label(action.act == Act::recv_act ? first : first + count - 1);
}

void TrainStep::begin_exchange(const Action& action, const Tensor& given) {
  Ctx ctx = context(action.microbatch);
  vocabulary_->begin(action.collective, action.microbatch, given, ctx);
}

Tensor TrainStep::end_exchange(const Action& action) {
  Ctx ctx = context(action.microbatch);
  return vocabulary_->end(action.collective, action.microbatch, ctx);
}

void TrainStep::sum(int which) {
  const StepSum& sum = policy_.sums[static_cast<std::size_t>(which)];
  tag(sum.name, -1, nullptr);
  Tensor& numbers = numbers_[static_cast<std::size_t>(which)];
  model_.mesh().sum(numbers, sum.over, stream_);
  if (which != StepPolicy::kTargets) return;
  const Tensor summed = std::exchange(numbers, {});
  result_.targets = tokens_ = 1;
  if (stream_.is_dry()) return;
  const auto counts = summed.host<double>();
  result_.targets = static_cast<std::int64_t>(counts[0]);
  if (counts.size() > 1) tokens_ = static_cast<std::int64_t>(counts[1]);
}

/// Values that no codec takes, and routers here whose logits are not finite (Router::mark_bad),
/// count as a norm that is not finite: all ranks skip the update. Behind sigmoids such logits may
/// leave loss and gradients finite, and choices without sense.
void TrainStep::add_totals() {
  if (copies_.is_anything() && policy_.updates) end_copies();
  const Tensor squares = total(StepPolicy::kSquares);
  policy_.reduces ? model_.store().add_counted_squares(squares, stream_)
                  : model_.store().add_local_squares(squares, stream_);
  if (model_.took_bad_values(stream_)) ops::fill(squares, std::nan(""), stream_);
  if (const Tensor load = expert_load(); load.defined()) {
    ops::mark_non_finite(load, squares, stream_);
  }
  const std::int64_t first_stage = totals().count() - policy_.stage_squares;
  if (policy_.stage_squares > 0) {
    const std::int64_t own = first_stage + model_.mesh().coord(Axis::pp);
    ops::copy(squares, totals().slice(0, own, own + 1), stream_);
  }
  if (policy_.updates) {
    const std::int64_t own = RankTimes(model_.mesh().shape()).behind();
    optimizer_.add_totals(totals().slice(0, own, first_stage), step_, stream_);
  }
  tell_block_seconds();
  if (asks_ && asks_()) ops::fill(total(StepPolicy::kAsking), 1.0, stream_);
}

void TrainStep::tell_block_seconds() {
  const RankTimes times(model_.mesh().shape());
  if (times.count() == 0 || !blocks_) return;
  const double seconds = blocks_->is_behind() ? last_block_seconds_ : blocks_->seconds();
  if (seconds > 0) ops::fill(total(times.place_of(model_.mesh().rank())), seconds, stream_);
}

void TrainStep::time_blocks(std::unique_ptr<StreamClock> clock) {
  if (stream_.is_dry()) return;
  blocks_ = std::make_shared<BlockMeter>(std::move(clock));
  model_.mesh().flight().set_wait_observer(blocks_);
}

/// Where gradients stay with ranks, they count as what the mean over N of them would be made of: N
/// times what each has made, and the squares of all are averaged.
double TrainStep::squares_factor() const {
  return policy_.reduces ? 1.0 : static_cast<double>(model_.mesh().shape().size(kTokenAxes));
}

bool TrainStep::exchanges_copies_early() const {
  return stream_.device().kind == Device::Kind::cpu;
}

void TrainStep::expect_copies() {
  if (!std::exchange(expects_copies_, false)) return;
  tag("gradients for copies", -1, nullptr);
  Model& kept = copies_.kept->model();
  const auto& buckets = kept.units().buckets;
  for (int bucket = 0; bucket < std::ssize(buckets); ++bucket) {
    if (!buckets[static_cast<std::size_t>(bucket)].trains) continue;
    taken_.push_back(
        model_.mesh()
            .comm(copies_.axis)
            .recv(kept.store().held_grads(bucket), copies_.ward, stream_, kFirstCopyTag + bucket));
  }
}

void TrainStep::give_to_keeper(int bucket) {
  tag("gradients for copies", model_.units().buckets[static_cast<std::size_t>(bucket)].owner,
      nullptr);
  given_.push_back(model_.mesh()
                       .comm(copies_.axis)
                       .send(model_.store().held_grads(bucket), *copies_.keeper, stream_,
                             kFirstCopyTag + bucket));
  is_given_[static_cast<std::size_t>(bucket)] = true;
}

/// Tables that are tied may change until the norm.
bool TrainStep::is_final(const StepOp& op) const {
  if (!copies_.keeper || !policy_.updates || !policy_.reduces || !exchanges_copies_early() ||
      op.kind != StepOp::Kind::reduce || !op.slice.is_all()) {
    return false;
  }
  const RankUnits& units = model_.units();
  const RankUnits::Bucket& bucket = units.buckets[static_cast<std::size_t>(op.what)];
  const bool is_block = units.units[static_cast<std::size_t>(bucket.owner)].block >= 0;
  return bucket.over.empty() && bucket.sums.empty() &&
         (units.tie == RankUnits::Tie::none || is_block);
}

void TrainStep::end_copies() {
  for (std::size_t bucket = 0; copies_.keeper && bucket < is_given_.size(); ++bucket) {
    if (!is_given_[bucket]) give_to_keeper(static_cast<int>(bucket));
  }
  expect_copies();
  for (const Work& taken : std::exchange(taken_, {})) taken.wait(stream_);
}

void TrainStep::before_deciding(Decide decide) {
  HEDDLE_CHECK(model_.store().can_retake_steps(), "what a step changes early is not kept twice");
  decide_ = std::move(decide);
}

void TrainStep::update() {
  if (before_update_) before_update_();
  for (const Work& given : std::exchange(given_, {})) given.wait(stream_);
  make_clip_factor();
  optimizer_.exchange(args_, stream_);
  if (decide_ && !stream_.is_dry()) {
    const Tensor sums = to_host(totals(), stream_);
    model_.mesh().check();  // a GPU's sum ends without its result when a rank is lost
    decided_totals_.clear();
    if (last_load_.defined()) {
      const Tensor load = to_host(expert_load(), stream_);
      decided_totals_.assign(load.host<double>().begin(), load.host<double>().end());
    }
    // Last: who looks for the squares of stages finds them at the end (train/lost_state.cpp).
    decided_totals_.insert(decided_totals_.end(), sums.host<double>().begin(),
                           sums.host<double>().end());
    tag("decision", -1, nullptr);
    decide_(!policy_.reduces);
    is_decided_ = true;
  }
  change_weights();
}

void TrainStep::set_numbers(int which, std::span<const double> values) {
  const Tensor& numbers = numbers_[static_cast<std::size_t>(which)];
  Memory host = memory_.for_host();
  const Tensor staged = host.alloc(numbers.shape(), DType::f64, MemoryTag::workspace);
  std::ranges::copy(values, staged.host<double>().begin());
  ops::copy(staged, numbers, stream_);
}

void TrainStep::decide_by(std::span<const double> totals) {
  const std::int64_t load = last_load_.defined() ? last_load_.count() : 0;
  HEDDLE_CHECK(
      !is_decided_ && !numbers_.empty() && std::ssize(totals) == this->totals().count() + load,
      "{} totals for a step of others", totals.size());
  set_numbers(StepPolicy::kTotals, totals.last(totals.size() - static_cast<std::size_t>(load)));
  if (load > 0) {
    set_numbers(StepPolicy::kExpertLoad, totals.first(static_cast<std::size_t>(load)));
  }
  decided_totals_.assign(totals.begin(), totals.end());
  is_decided_ = true;
  make_clip_factor();
  change_weights();
}

StepResult TrainStep::decided_result() {
  HEDDLE_CHECK(is_decided_, "the result of a step that was not decided");
  if (is_read_) return result_;  // it was interrupted behind that
  const std::span<const double> decided = decided_totals_;
  const auto load = last_load_.defined() ? static_cast<std::size_t>(last_load_.count()) : 0;
  if (load > 0) read_load(decided.first(load));
  read_totals(decided.subspan(load));
  return result_;
}

void TrainStep::make_clip_factor() {
  args_.clip = memory_.alloc({1}, DType::f32, MemoryTag::workspace);
  ops::clip_factor(totals(), clip_ / std::sqrt(squares_factor()), args_.clip, stream_);
}

void TrainStep::change_weights() {
  model_.store().settle();
  optimizer_.step(args_, stream_);
  if (balances_routers()) balance_routers(model_.store());
  if (copies_.kept == nullptr) return;
  copies_.kept->update(args_, stream_);
  if (balances_routers()) balance_routers(copies_.kept->model().store());
}

bool TrainStep::balances_routers() const {
  const auto& experts = model_.spec().experts;
  return experts && experts->bias_rate != 0.0 && last_load_.defined();
}

void TrainStep::balance_routers(ParamStore& store) {
  const auto& experts = model_.spec().experts;
  for (const ParamStore::HeldStretch& held : store.held()) {
    if (!held.parameter->balances || !held.parameter->trains) continue;
    const Tensor load = expert_load().select(0, *held.parameter->balances);
    ops::balance_bias(load.slice(0, 0, experts->count), experts->bias_rate, args_.clip, held.begin,
                      held.value, stream_);
    if (held.low.defined()) ops::cast(held.value, held.low, stream_);
  }
}

}  // namespace heddle
