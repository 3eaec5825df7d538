#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace heddle {

class ThreadGroup;

/// Whether a world of threads has failed, and why. Thread-safe.
class ThreadFailure {
 public:
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws Error(peer) when the world has failed.
  void check() const;
  std::string reason() const;
  /// Unblocks all ranks in all groups; false when it had failed before. Call it without holding any
  /// group's lock.
  bool fail(std::string reason) noexcept;
  /// The group's waiting ranks are woken when the world fails.
  void watch(const std::shared_ptr<ThreadGroup>& group);

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
  std::vector<std::weak_ptr<ThreadGroup>> groups_;
};

}  // namespace heddle
