#pragma once

#include <chrono>
#include <memory>

#include "tensor/stream.h"

namespace heddle {

/// When a stream came to a point of its work. On CPU, where work is done inline, the time of the
/// call; on a GPU an event, which the host does not wait for.
class StreamTime {
 public:
  /// Behind all that the stream has been given.
  static StreamTime now(Stream& stream);

  /// Of the same stream. Waits until it has come to both.
  static double seconds_between(const StreamTime& from, const StreamTime& to);

 private:
  std::chrono::steady_clock::time_point host_ = {};
  std::shared_ptr<void> event_;  // null on CPU
};

}  // namespace heddle
