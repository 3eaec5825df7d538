#pragma once

#include <atomic>
#include <cmath>

#include "codec/kernels.h"

namespace heddle::codec::cpu {

/// Notes the first of n values that is not finite; `first` is the index of the first value.
inline void note_first_bad(const EncodeCall& call, std::int64_t first, const float* values,
                           std::int64_t n) {
  std::int64_t at = 0;
  while (at < n && std::isfinite(values[at])) ++at;
  if (at == n) return;
  const std::int64_t note = kBadTop - (first + at);
  const std::atomic_ref<std::int64_t> noted(*call.bad);
  std::int64_t known = noted.load();
  while (known < note && !noted.compare_exchange_weak(known, note)) {
  }
}

}  // namespace heddle::codec::cpu
