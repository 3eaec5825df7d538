#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "tensor/stream.h"

namespace heddle::ops::cpu {

/// Calls body(begin, end) over [0, count) cut into at most stream.threads() consecutive ranges of
/// at least `grain` items, each on its own thread. OpenMP, because OpenBLAS's team is OpenMP's too:
/// two pools would fight for the cores. Exceptions must not leave the body.
template <class Body>
void parallel_for(Stream& stream, std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0 || stream.is_dry()) return;
  const std::int64_t wanted = (count + grain - 1) / std::max<std::int64_t>(grain, 1);
  const int threads = static_cast<int>(std::min<std::int64_t>(stream.threads(), wanted));
  if (threads <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t begin = count * me / team, end = count * (me + 1) / team;
    if (begin < end) body(begin, end);
  }
}

/// Calls body(index) for every index in [0, count), handed out one at a time: for items of uneven
/// cost.
template <class Body>
void parallel_items(Stream& stream, std::int64_t count, const Body& body) {
  if (stream.is_dry()) return;
  const int threads = static_cast<int>(std::min<std::int64_t>(stream.threads(), count));
#pragma omp parallel for num_threads(std::max(threads, 1)) schedule(dynamic, 1) if (threads > 1)
  for (std::int64_t index = 0; index < count; ++index) body(index);
}

}  // namespace heddle::ops::cpu
