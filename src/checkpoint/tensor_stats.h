#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "tensor/dtype.h"

namespace heddle {

/// What the finite elements of a tensor look like, and how many are not finite.
struct TensorStats {
  std::int64_t count = 0;  ///< of all elements
  std::int64_t nan = 0, inf = 0;
  double min = 0, max = 0;  ///< of the finite ones; 0 when there are none
  double sum = 0, sum_of_squares = 0;

  std::int64_t finite() const { return count - nan - inf; }
  std::int64_t non_finite() const { return nan + inf; }
  double mean() const { return finite() > 0 ? sum / static_cast<double>(finite()) : 0.0; }
  double rms() const;

  void add(std::span<const double> values);
};

/// How two tensors of equal count differ.
struct TensorDifference {
  double max_abs = 0;   ///< infinite where one is not finite and the other is something else
  double relative = 0;  ///< norm of the difference over the norm of the reference
};

/// Elements are read in pieces of this many, so that no tensor is held twice.
inline constexpr std::int64_t kPieceElements = 1 << 16;

/// Calls f with pieces of the elements as doubles; the bytes may be unaligned.
void for_each_piece(std::span<const std::byte> bytes, DType dtype,
                    const std::function<void(std::span<const double>)>& f);

TensorStats stats_of(std::span<const std::byte> bytes, DType dtype);
TensorDifference difference_of(std::span<const std::byte> bytes, DType dtype,
                               std::span<const std::byte> reference, DType reference_dtype);

}  // namespace heddle
