#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "ops/cpu/parallel.h"
#include "ops/rows.h"

namespace heddle::ops::cpu {

/// Elements of work below which another thread does not pay for its start.
inline constexpr std::int64_t kGrain = 16384;

/// Calls body(T{}) with T = float or double, as `dtype` says.
template <class Body>
void visit_float(DType dtype, const Body& body) {
  HEDDLE_CHECK(dtype == DType::f32 || dtype == DType::f64, "an operation on {}", name_of(dtype));
  if (dtype == DType::f32) {
    body(float{});
  } else {
    body(double{});
  }
}

/// Calls body(offsets, length) for pieces that together cover the elements of all tensors, on the
/// stream's threads. For elementwise work, where it does not matter how rows are cut.
template <int N, class Body>
void parallel_pieces(Stream& stream, const std::array<const Tensor*, N>& tensors,
                     const Body& body) {
  const Rows<N> rows(tensors, Rows<N>::Merge::all);
  const std::int64_t count = rows.count(), length = rows.length();
  if (count == 0 || length == 0) return;
  if (count == 1) {
    const auto start = rows.offsets(0);
    // Cut at multiples of 64 elements: no two threads write one cache line of an aligned tensor.
    const std::int64_t chunks = (length + 63) / 64;
    parallel_for(stream, chunks, kGrain / 64, [&](std::int64_t begin, std::int64_t end) {
      auto offsets = start;
      for (auto& offset : offsets) offset += begin * 64;
      body(offsets, std::min(end * 64, length) - begin * 64);
    });
    return;
  }
  parallel_for(stream, count, std::max<std::int64_t>(1, kGrain / length),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) body(rows.offsets(row), length);
               });
}

}  // namespace heddle::ops::cpu
