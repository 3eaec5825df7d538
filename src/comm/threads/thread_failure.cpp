#include "comm/threads/thread_failure.h"

#include "base/error.h"
#include "comm/threads/thread_group.h"

namespace heddle {

void ThreadFailure::check() const {
  if (has_failed()) throw Error(ErrorCode::peer, reason());
}

std::string ThreadFailure::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool ThreadFailure::fail(std::string reason) noexcept {
  std::vector<std::weak_ptr<ThreadGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    if (has_failed()) return false;
    reason_ = std::move(reason);
    failed_.store(true, std::memory_order_release);
    groups.swap(groups_);
  }
  for (const auto& weak : groups) {
    if (const auto group = weak.lock()) group->wake_all();
  }
  return true;
}

void ThreadFailure::watch(const std::shared_ptr<ThreadGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
}

}  // namespace heddle
