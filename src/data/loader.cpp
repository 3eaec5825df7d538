#include "data/loader.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace heddle {

Loader::Loader(const Dataset& dataset, const BatchPlan& plan, Memory& memory,
               std::int64_t first_step, std::int64_t ahead)
    : dataset_(dataset),
      plan_(plan),
      memory_(memory),
      ahead_(static_cast<std::size_t>(ahead)),
      step_(first_step) {
  HEDDLE_CHECK(
      plan.rows_per_batch > 0 && plan.batches_per_step > 0 && plan.first_in_step >= 0 &&
          plan.first_in_step + plan.rows_per_batch * plan.batches_per_step <= plan.samples_per_step,
      "{} micro-batches of {} from {} in a step of {}", plan.batches_per_step, plan.rows_per_batch,
      plan.first_in_step, plan.samples_per_step);
  HEDDLE_CHECK(first_step >= 0 && ahead >= 0, "step {}, {} ahead", first_step, ahead);
  if (ahead > 0) {
    reader_ = std::jthread([this](const std::stop_token& stop) { read_ahead(stop); });
  }
}

Batch Loader::batch(std::int64_t step, std::int64_t micro_batch,
                    const std::stop_token& stop) const {
  return dataset_.batch(plan_.first_sample(step, micro_batch), plan_.rows_per_batch, memory_, stop);
}

Batch Loader::read(const std::stop_token& stop) {
  Batch made = batch(step_, micro_batch_, stop);
  if (++micro_batch_ == plan_.batches_per_step) {
    micro_batch_ = 0;
    ++step_;
  }
  return made;
}

void Loader::read_ahead(const std::stop_token& stop) {
  try {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return ready_.size() < ahead_; }) &&
           !stop.stop_requested()) {
      lock.unlock();
      Batch made = read(stop);
      lock.lock();
      ready_.push_back(std::move(made));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch Loader::next() {
  const Stopwatch waiting;
  if (ahead_ == 0) {
    Batch batch = read({});
    wait_seconds_ += waiting.seconds();
    return batch;
  }
  std::unique_lock lock(mutex_);
  if (ready_.empty()) {
    changed_.wait(lock, [&] { return !ready_.empty() || failure_ != nullptr; });
    wait_seconds_ += waiting.seconds();
  }
  if (ready_.empty()) std::rethrow_exception(failure_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

double Loader::take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }

}  // namespace heddle
