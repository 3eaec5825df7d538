#pragma once

#include <memory>

#include "tensor/device.h"

namespace heddle {

/// A point in a stream's work. On CPU, where work is done when the call returns, it is always
/// reached.
class Event {
 public:
  bool is_reached() const;
  /// Blocks the calling thread until then.
  void wait_on_host() const;

 private:
  friend class Stream;
  std::shared_ptr<void> handle_;  // null on CPU
};

/// An ordered queue of work on one device. There is no default stream: a function that launches
/// work takes one. A CPU stream runs work inline, on up to `threads` cores; a CUDA stream runs it
/// behind the caller's back, and all compute of a rank goes to one, which is why memory can be
/// reused as soon as its tensors are gone (memory.h). Copies are the same stream.
class Stream {
 public:
  /// Error(resources) when there is no such device.
  explicit Stream(int threads, Device device = {});

  /// A stream whose operations do nothing: with a dry Memory, a step runs through all its
  /// allocations without computing, which is how memory is predicted. Needs no device.
  static Stream dry(Device device = {});

  Device device() const { return device_; }
  bool is_dry() const { return is_dry_; }
  /// The size of the thread team that an operation on this stream may use.
  int threads() const { return threads_; }

  /// Where a library has a faster way whose sums run in no fixed order (cuDNN's attention
  /// backward), it is taken only when this is off. On by default.
  bool is_deterministic() const { return is_deterministic_; }
  void set_deterministic(bool yes) { is_deterministic_ = yes; }

  Event record();
  /// Later work of this stream runs after the event's; the host does not wait.
  void wait(const Event& event);
  /// Blocks the calling thread until all work is done, and throws what made some of it fail.
  void synchronize();

  /// The cudaStream_t; null on CPU.
  void* native() const { return queue_.get(); }
  /// What a backend's libraries keep with a stream (handles, workspace): made by the backend at its
  /// first use, destroyed with the stream.
  std::shared_ptr<void>& library_state() { return *library_state_; }

 private:
  Stream(int threads, Device device, bool is_dry);

  Device device_;
  int threads_;
  bool is_dry_ = false;
  bool is_deterministic_ = true;
  std::shared_ptr<void> queue_;
  std::shared_ptr<std::shared_ptr<void>> library_state_;  // behind the queue: goes first
};

}  // namespace heddle
