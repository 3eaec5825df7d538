#include "recover/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace heddle::recover {

Ledger::Ledger(std::int64_t samples_per_step, std::int64_t rows_per_batch)
    : samples_per_step_(samples_per_step), rows_per_batch_(rows_per_batch) {
  if (rows_per_batch > 0 && samples_per_step > 0 && samples_per_step % rows_per_batch == 0) return;
  throw Error(ErrorCode::usage,
              fmt::format("a step of {} samples is not made of micro-batches of {}",
                          samples_per_step, rows_per_batch),
              "let train.tokens_per_step be a multiple of train.microbatch * data.seq_len");
}

void Ledger::begin_epoch(std::uint64_t epoch, std::int64_t steps, const MeshShape& mesh) {
  if (epoch_) {
    HEDDLE_CHECK(epoch > *epoch_, "epoch {} behind {}", epoch, *epoch_);
    HEDDLE_CHECK(steps >= steps_, "{} steps are finished: those behind {} were used", steps_,
                 steps);
    HEDDLE_CHECK(steps <= steps_ + 1, "{} steps are finished: those up to {} were not used", steps_,
                 steps);
  }
  const int replicas = mesh.size({Axis::site, Axis::dp});
  if (replicas > micro_batches()) {
    throw Error(ErrorCode::usage,
                fmt::format("{} data-parallel replicas for a step of {} micro-batches: some would "
                            "have nothing to do",
                            replicas, micro_batches()),
                "lower train.microbatch, or let the ranks divide the model (parallel.tp, pp)");
  }
  mesh_ = mesh;
  epoch_ = epoch;
  steps_ = steps;
  is_back_ = false;
  if (!stretches_.empty() && stretches_.back().steps_before == steps) stretches_.pop_back();
  stretches_.push_back({epoch, steps, replicas});
}

void Ledger::finished(std::int64_t step) {
  HEDDLE_CHECK(epoch_ && !is_back_ && step == steps_ + 1, "step {} is finished behind {}", step,
               steps_);
  steps_ = step;
}

void Ledger::go_back(std::int64_t steps) {
  HEDDLE_CHECK(steps >= 0 && steps <= steps_, "back from step {} to {}", steps_, steps);
  steps_ = steps;
  while (!stretches_.empty() && stretches_.back().steps_before >= steps) stretches_.pop_back();
  is_back_ = true;
}

std::int64_t Ledger::first_of(int replica, int replicas) const {
  return micro_batches() * replica / replicas;
}

Share Ledger::share(int rank) const {
  HEDDLE_CHECK(epoch_ && !is_back_, "a share of rank {} before an epoch begins", rank);
  const int replicas = mesh_.size({Axis::site, Axis::dp});
  const int replica =
      mesh_.coord(Axis::site, rank) * mesh_.size(Axis::dp) + mesh_.coord(Axis::dp, rank);
  const std::int64_t first = first_of(replica, replicas);
  const std::int64_t own = first_of(replica + 1, replicas) - first;
  const std::int64_t most = (micro_batches() + replicas - 1) / replicas;
  return {.plan = {.samples_per_step = samples_per_step_,
                   .first_in_step = first * rows_per_batch_,
                   .rows_per_batch = rows_per_batch_,
                   .batches_per_step = own},
          .blanks = most - own};
}

Ledger::Use Ledger::use_of(std::int64_t sample) const {
  const std::int64_t step = sample / samples_per_step_ + 1;
  HEDDLE_CHECK(sample >= 0 && step <= steps_, "sample {} of {} steps", sample, steps_);
  HEDDLE_CHECK(!stretches_.empty() && step > stretches_.front().steps_before,
               "sample {} was used before this process came", sample);
  const auto stretch =
      std::ranges::upper_bound(stretches_, step - 1, {}, &Stretch::steps_before) - 1;
  const std::int64_t micro_batch = sample % samples_per_step_ / rows_per_batch_;
  int replica = 0;
  while (first_of(replica + 1, stretch->replicas) <= micro_batch) ++replica;
  return {step, stretch->epoch, replica, micro_batch - first_of(replica, stretch->replicas)};
}

std::string Ledger::text() const {
  std::string text;
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    const std::int64_t first = stretches_[i].steps_before + 1;
    const std::int64_t last = i + 1 < stretches_.size() ? stretches_[i + 1].steps_before : steps_;
    if (last < first) continue;
    text += fmt::format("{}{} to {} by {}{}", text.empty() ? "steps " : ", ", first, last,
                        stretches_[i].replicas,
                        !text.empty()                 ? ""
                        : stretches_[i].replicas == 1 ? " replica"
                                                      : " replicas");
  }
  return text.empty() ? "no step yet" : text;
}

}  // namespace heddle::recover
