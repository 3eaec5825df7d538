#include "optim/onebit_adam.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "codec/registry.h"
#include "ops/elementwise.h"
#include "ops/frozen_adam.h"
#include "optim/adamw.h"

namespace heddle {
namespace {

// In the order of states().
constexpr std::size_t kFirst = 0, kSecond = 1, kWorkerError = 2, kServerError = 3;

}  // namespace

std::vector<OptimizerState> OnebitAdam::states(const OnebitAdamConfig&) {
  using Lies = OptimizerState::Lies;
  return {{.name = "exp_avg"},
          {.name = "exp_avg_sq"},
          {.name = "worker_error", .lies = Lies::by_rank},
          {.name = "server_error", .lies = Lies::by_chunk}};
}

OnebitAdam::OnebitAdam(const OnebitAdamConfig& config, ParamStore& store)
    : config_(config),
      store_(store),
      codec_(codec::make_codec("sign")),
      frozen_at_(config.freeze_step) {
  for (const RankUnits::Bucket& bucket : store.units().buckets) {
    if (bucket.zero < 2) continue;
    throw Error(ErrorCode::usage,
                fmt::format("onebit-adam needs whole gradients on every rank, and parallel.zero = "
                            "{} divides them",
                            bucket.zero),
                "use parallel.zero = 0 or 1");
  }
  matrices_ = store.joint_matrices();
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const auto& matrix = matrices_[i];
    auto group = std::ranges::find(groups_, matrix.ranks, &Group::ranks);
    if (group == groups_.end()) {
      groups_.push_back({.ranks = matrix.ranks, .sum = {}, .matrices = {}});
      group = groups_.end() - 1;
    }
    group->matrices.push_back(i);
    const bool is_divided =
        !matrix.held.value.defined() || matrix.held.value.count() < matrix.grad.count();
    if (!is_divided || whole_momentum_.contains(matrix.bucket)) continue;
    whole_momentum_[matrix.bucket] = store.memory().zeros({store.bucket_elements(matrix.bucket)},
                                                          store.grad_dtype(), MemoryTag::optimizer);
  }
  for (Group& group : groups_) {
    if (group.ranks->size() == 1) continue;
    std::vector<std::int64_t> sizes;
    for (const std::size_t i : group.matrices) sizes.push_back(matrices_[i].grad.count());
    group.sum.emplace(*codec_, *group.ranks, std::move(sizes), store.memory());
  }
}

// ---- The warm-up, and its end -------------------------------------------------------------------

void OnebitAdam::adapt(StepPolicy& policy, std::int64_t step) const {
  policy.reduces = !is_frozen(step);
  if (!config_.freeze_step) policy.sums[StepPolicy::kTotals].numbers += 1;
}

/// Whether the second moment is looked at: as step 1 + k / (1 - beta2) leaves it.
bool OnebitAdam::is_sum_due(std::int64_t step) const {
  const auto every = static_cast<std::int64_t>(std::ceil(1.0 / (1.0 - config_.adamw.beta2) - 1e-9));
  return step > 1 && (step - 1) % every == 0;
}

void OnebitAdam::add_totals(const Tensor& own, std::int64_t step, Stream& stream) const {
  if (own.count() == 0 || frozen_at_ || !is_sum_due(step)) return;
  store_.add_counted_sum(kSecond, own, stream);
}

void OnebitAdam::look_at_totals(std::span<const double> own, std::int64_t step) {
  if (own.empty() || frozen_at_ || !is_sum_due(step)) return;
  const double corrected =
      own[0] / (1.0 - std::pow(config_.adamw.beta2, static_cast<double>(step - 1)));
  const double earlier = std::exchange(earlier_sum_, corrected);
  if (earlier <= 0.0 || step <= config_.least_steps) return;
  const double ratio = corrected / earlier;
  if (std::min(ratio, 1.0 / ratio) < config_.settled) return;
  frozen_at_ = step;
  if (store_.mesh().rank() != 0) return;
  log_info(
      "onebit-adam: the second moment has settled (ratio {:.3f}); from step {} on it is "
      "frozen, and ranks exchange signs of the momentum",
      ratio, step + 1);
}

Optimizer::Numbers OnebitAdam::numbers() const {
  if (config_.freeze_step) return {};  // it follows from the run file
  Numbers numbers = {{"earlier_sum", earlier_sum_}};
  if (frozen_at_) numbers["frozen_at"] = static_cast<double>(*frozen_at_);
  return numbers;
}

void OnebitAdam::restore(const Numbers& numbers) {
  if (config_.freeze_step) return;
  if (const auto found = numbers.find("earlier_sum"); found != numbers.end()) {
    earlier_sum_ = found->second;
  }
  if (const auto found = numbers.find("frozen_at"); found != numbers.end()) {
    frozen_at_ = static_cast<std::int64_t>(found->second);
  }
}

// ---- Steps --------------------------------------------------------------------------------------

void OnebitAdam::step(const StepArgs& args, Stream& stream) {
  const bool is_frozen = this->is_frozen(args.step);
  for (const OptShard& shard : store_.shards()) {
    const bool is_matrix = shard.decays;
    if (!is_frozen || !is_matrix) adamw_step(config_.adamw, shard, kFirst, args, stream);
  }
  if (is_frozen) update_matrices(args, stream);
}

Tensor OnebitAdam::whole_momentum(std::size_t index) const {
  const auto& matrix = matrices_[index];
  const auto whole = whole_momentum_.find(matrix.bucket);
  if (whole == whole_momentum_.end()) return matrix.held.states[kFirst];
  return whole->second.slice(0, matrix.begin, matrix.begin + matrix.grad.count());
}

void OnebitAdam::gather_momentum(Stream& stream) {
  if (std::exchange(has_whole_momentum_, true)) return;
  for (const auto& [bucket, whole] : whole_momentum_) {
    store_.gather_state(kFirst, bucket, whole, stream);
  }
}

void OnebitAdam::exchange(const StepArgs& args, Stream& stream) {
  if (!is_frozen(args.step)) return;
  gather_momentum(stream);
  for (const std::size_t errors : {kWorkerError, kServerError}) store_.keep_earlier(errors, stream);
  const AdamWConfig& adamw = config_.adamw;
  for (const Group& group : groups_) {
    std::vector<Tensor> tensors;
    std::vector<JointSum::Books> books;
    for (const std::size_t i : group.matrices) {
      const auto& matrix = matrices_[i];
      ops::blend(
          matrix.grad, whole_momentum(i),
          {.keep = adamw.beta1 / group.ranks->size(), .take = 1.0 - adamw.beta1, .clip = args.clip},
          stream);
      tensors.push_back(matrix.grad);
      books.push_back({matrix.states[kWorkerError], matrix.states[kServerError]});
    }
    if (group.sum) group.sum->sum(tensors, books, args.clip, stream);
  }
}

void OnebitAdam::update_matrices(const StepArgs& args, Stream& stream) {
  const AdamWConfig& adamw = config_.adamw;
  const auto correction = [](double beta, std::int64_t step) {
    return 1.0 / (1.0 - std::pow(beta, static_cast<double>(step)));
  };
  ops::FrozenAdamArgs update{.lr = args.lr,
                             .eps = adamw.eps,
                             .weight_decay = adamw.weight_decay,
                             .first = correction(adamw.beta1, args.step),
                             .second = correction(adamw.beta2, *frozen_at_),
                             .masks = config_.masks,
                             .guard = args.clip};
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const auto& matrix = matrices_[i];
    if (whole_momentum_.contains(matrix.bucket)) {
      ops::frozen_adam({}, matrix.grad, whole_momentum(i), {}, {.guard = args.clip}, stream);
    }
    if (!matrix.held.value.defined()) continue;
    update.p_low = matrix.held.low;
    ops::frozen_adam(matrix.held.value, matrix.held.grad, matrix.held.states[kFirst],
                     matrix.held.states[kSecond], update, stream);
  }
}

}  // namespace heddle
