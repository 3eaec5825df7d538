#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tensor/stream.h"

namespace heddle {

/// Says when a stream came to points of its work. Not thread-safe: it belongs to whoever gives the
/// stream its work.
class StreamClock {
 public:
  virtual ~StreamClock() = default;

  /// Notes the point behind all work that the stream has been given; returns its number, from 0.
  virtual std::size_t mark() = 0;
  /// From one point to a later one. Both have been reached.
  virtual double seconds(std::size_t from, std::size_t to) const = 0;
  /// Forgets all points; numbers begin anew.
  virtual void forget() = 0;
  /// Whether points are reached some time after they are noted: for certain only when the host has
  /// waited for the stream.
  virtual bool is_behind() const = 0;
};

/// Of a stream that works inline: what `now` says, in seconds from any moment on.
std::unique_ptr<StreamClock> make_host_clock(std::function<double()> now);

/// Of any stream: the time on its device. Nothing waits for the device, and points cost it next to
/// nothing.
std::unique_ptr<StreamClock> make_stream_clock(Stream& stream);

}  // namespace heddle
