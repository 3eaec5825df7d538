#include "comm/watchdog.h"

#include <algorithm>

#include "comm/verdict.h"

namespace heddle {

Watchdog::Watchdog(std::chrono::duration<double> limit,
                   std::function<std::vector<RankReport>()> collect,
                   std::function<void(const std::string& verdict)> fail)
    : limit_(limit), collect_(std::move(collect)), fail_(std::move(fail)) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  const auto pause = std::clamp<std::chrono::duration<double>>(
      limit_ / 10, std::chrono::milliseconds(10), std::chrono::seconds(1));
  for (std::unique_lock lock(mutex_); !is_stopping_;) {
    if (stopping_.wait_for(lock, pause, [this] { return is_stopping_; })) return;
    lock.unlock();
    if (const auto verdict = judge(collect_(), limit_.count())) {
      fail_(verdict->text);
      return;
    }
    lock.lock();
  }
}

}  // namespace heddle
