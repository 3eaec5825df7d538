#pragma once

#include "tensor/device.h"

namespace heddle {

/// A point in a stream's work. On CPU, where work is done when the call returns, it is always
/// reached.
class Event {};

/// An ordered queue of work on one device. There is no default stream: a function that launches
/// work takes one. A CPU stream runs work inline, on up to `threads` cores.
class Stream {
 public:
  explicit Stream(int threads, Device device = {}) : device_(device), threads_(threads) {}

  /// A stream whose operations do nothing: with a dry Memory, a step runs through all its
  /// allocations without computing, which is how memory is predicted.
  static Stream dry() {
    Stream stream(1);
    stream.is_dry_ = true;
    return stream;
  }

  Device device() const { return device_; }
  bool is_dry() const { return is_dry_; }
  /// The size of the thread team that an operation on this stream may use.
  int threads() const { return threads_; }

  Event record() { return {}; }
  void wait(const Event&) {}

 private:
  Device device_;
  int threads_;
  bool is_dry_ = false;
};

}  // namespace heddle
