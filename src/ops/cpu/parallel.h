#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ops/cpu/openmp.h"
#include "tensor/stream.h"

namespace heddle::ops::cpu {

/// Calls body(begin, end) over [0, count) cut into at most stream.threads() consecutive ranges of
/// at least `grain` items, each on its own thread. Exceptions must not leave the body.
template <class Body>
void parallel_for(Stream& stream, std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0 || stream.is_dry()) return;
  const std::int64_t wanted = (count + grain - 1) / std::max<std::int64_t>(grain, 1);
  const int threads = static_cast<int>(std::min<std::int64_t>(stream.threads(), wanted));
  if (threads <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  const OpenMp& openmp = OpenMp::instance();
  openmp.run_team(threads, [&] {
    const std::int64_t team = openmp.get_num_threads(), me = openmp.get_thread_num();
    const std::int64_t begin = count * me / team, end = count * (me + 1) / team;
    if (begin < end) body(begin, end);
  });
}

/// Calls body(index) for every index in [0, count), handed out one at a time: for items of uneven
/// cost. Exceptions must not leave the body.
template <class Body>
void parallel_items(Stream& stream, std::int64_t count, const Body& body) {
  if (stream.is_dry()) return;
  const int threads = static_cast<int>(std::min<std::int64_t>(stream.threads(), count));
  std::atomic<std::int64_t> next{0};
  const auto take_items = [&] {
    for (std::int64_t index = next++; index < count; index = next++) body(index);
  };
  if (threads <= 1) return take_items();
  OpenMp::instance().run_team(threads, take_items);
}

}  // namespace heddle::ops::cpu
