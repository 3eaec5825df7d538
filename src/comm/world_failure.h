#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"

namespace heddle {

/// Something in which ranks wait.
class Wakeable {
 public:
  virtual ~Wakeable() = default;
  /// The world has failed: everybody who waits here must notice.
  virtual void wake_all() noexcept = 0;
};

/// Whether a world has failed, and why. Shared by the ranks of a process. Thread-safe.
class WorldFailure {
 public:
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws StoppedByPeer when the world has failed.
  void check() const;
  /// What `check` throws, of a world that has failed.
  std::exception_ptr error() const;
  std::string reason() const;
  /// What the program ends with.
  ErrorCode code() const;
  /// The rank that says the reason to the user; -1: not known.
  int teller() const;
  /// Of whom nothing can be expected any more, where that is the reason (Verdict::lost).
  std::vector<int> lost() const;
  /// Wakes all who wait; false when it had failed before, and then the first reason stays. Call it
  /// without holding a lock that wake_all takes.
  bool fail(std::string reason, ErrorCode code = ErrorCode::peer, int teller = -1,
            std::vector<int> lost = {}) noexcept;
  /// Is woken when the world fails, at once where it has.
  void watch(const std::shared_ptr<Wakeable>& place);

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
  ErrorCode code_ = ErrorCode::peer;
  int teller_ = -1;
  std::vector<int> lost_;
  std::vector<std::weak_ptr<Wakeable>> places_;
};

}  // namespace heddle
