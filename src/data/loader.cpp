#include "data/loader.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace heddle {

Loader::Loader(const Dataset& dataset, const BatchPlan& plan, Memory& memory,
               std::int64_t first_step)
    : dataset_(dataset), plan_(plan), memory_(memory) {
  HEDDLE_CHECK(
      plan.rows_per_batch > 0 && plan.batches_per_step > 0 && plan.first_in_step >= 0 &&
          plan.first_in_step + plan.rows_per_batch * plan.batches_per_step <= plan.samples_per_step,
      "{} micro-batches of {} from {} in a step of {}", plan.batches_per_step, plan.rows_per_batch,
      plan.first_in_step, plan.samples_per_step);
  HEDDLE_CHECK(first_step >= 0, "step {}", first_step);
  reader_ = std::jthread(
      [this, first_step](const std::stop_token& stop) { read_ahead(stop, first_step); });
}

Batch Loader::batch(std::int64_t step, std::int64_t micro_batch) const {
  return dataset_.batch(plan_.first_sample(step, micro_batch), plan_.rows_per_batch, memory_);
}

void Loader::read_ahead(const std::stop_token& stop, std::int64_t first_step) {
  try {
    for (std::int64_t step = first_step; !stop.stop_requested(); ++step) {
      for (std::int64_t micro_batch = 0; micro_batch < plan_.batches_per_step; ++micro_batch) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return ready_.size() < kAhead; })) return;
        lock.unlock();
        Batch made = batch(step, micro_batch);
        lock.lock();
        ready_.push_back(std::move(made));
        changed_.notify_all();
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  if (ready_.empty() && failure_ == nullptr) {
    const Stopwatch waiting;
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
