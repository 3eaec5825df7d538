#include "comm/work.h"

namespace heddle {

void WorkState::finish(std::exception_ptr failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    flight_->end(call_, failure != nullptr);
    done_ = true;
    failure_ = std::move(failure);
  }
  ended_.notify_all();
}

void WorkState::wait() {
  std::unique_lock lock(mutex_);
  if (!done_) {
    flight_->wait(call_);
    ended_.wait(lock, [this] { return done_; });
  }
  if (failure_) std::rethrow_exception(failure_);
}

bool WorkState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Work::wait(Stream&) const {
  if (state_) state_->wait();
}

}  // namespace heddle
