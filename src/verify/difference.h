#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace heddle {

/// A difference between two tensors that is added up box by box.
struct Difference {
  double squares = 0, norm_squares = 0, elements = 0;

  void add(const Tensor& made, const Tensor& expected) {
    for (std::int64_t row = 0; row < made.size(0); ++row) {
      const bool is_matrix = made.dims() == 2;
      const Tensor a = is_matrix ? made.select(0, row) : made;
      const Tensor b = is_matrix ? expected.select(0, row) : expected;
      add(a.host<float>(), b.host<float>());
      if (!is_matrix) break;
    }
  }

  void add(std::span<const float> made, std::span<const float> expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double d = static_cast<double>(made[i]) - static_cast<double>(expected[i]);
      squares += d * d;
      norm_squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    elements += static_cast<double>(expected.size());
  }

  /// Norm of the difference over norm of what is expected.
  double relative() const {
    return norm_squares > 0 ? std::sqrt(squares / norm_squares) : std::sqrt(squares);
  }
};

}  // namespace heddle
