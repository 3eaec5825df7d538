#include "tensor/stream_time.h"

#include "tensor/device_runtime.h"

namespace heddle {

StreamTime StreamTime::now(Stream& stream) {
  StreamTime time;
  if (stream.native() != nullptr) {
    time.event_ = device_runtime::record_time(stream.native());
  } else {
    time.host_ = std::chrono::steady_clock::now();
  }
  return time;
}

double StreamTime::seconds_between(const StreamTime& from, const StreamTime& to) {
  if (from.event_) return device_runtime::seconds_between(from.event_.get(), to.event_.get());
  return std::chrono::duration<double>(to.host_ - from.host_).count();
}

}  // namespace heddle
