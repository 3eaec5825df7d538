#include "comm/work.h"

#include <utility>

namespace heddle {

void WorkState::finish(std::exception_ptr failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    if (flight_) flight_->end(call_, failure != nullptr);
    done_ = true;
    failure_ = failure;
  }
  ended_.notify_all();
  if (on_end_) on_end_(failure);
}

void WorkState::set_on_wait(OnWait on_wait) {
  const std::lock_guard lock(mutex_);
  on_wait_ = std::move(on_wait);
}

void WorkState::wait(Stream& consumer, bool is_rank) {
  std::unique_lock lock(mutex_);
  const bool holds_rank = is_rank && flight_ && (!done_ || on_wait_);
  if (holds_rank) {
    lock.unlock();  // who is told may call a device's driver
    flight_->begin_wait();
    lock.lock();
    if (!done_ || on_wait_) flight_->wait(call_);
  }
  ended_.wait(lock, [this] { return done_; });
  if (failure_) std::rethrow_exception(failure_);
  const OnWait on_wait = std::exchange(on_wait_, {});
  lock.unlock();
  if (on_wait) on_wait(consumer);
  if (holds_rank) flight_->end_wait();
}

bool WorkState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Work::wait(Stream& consumer) const {
  if (state_) state_->wait(consumer);
}

void Work::follow(Stream& consumer) const {
  if (state_) state_->wait(consumer, false);
}

}  // namespace heddle
