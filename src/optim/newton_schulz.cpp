#include "optim/newton_schulz.h"

#include <utility>

#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/reduce.h"

namespace heddle {
namespace {

// X <- a X + (b G + c G G) X, where G = X X^T.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;

}  // namespace

Tensor newton_schulz(const Tensor& matrix, int steps, DType dtype, Memory& memory, Stream& stream) {
  const auto alloc = [&](const Shape& shape) {
    return memory.alloc(shape, dtype, MemoryTag::workspace);
  };
  const Tensor sum = memory.alloc({1}, DType::f64, MemoryTag::workspace);
  ops::fill(sum, 0.0, stream);
  ops::add_sum_of_squares(matrix, sum, stream);
  ops::divide_by_norm(matrix, sum, kLeastNorm, stream);
  Tensor x = matrix;
  if (dtype != matrix.dtype()) {
    x = alloc(matrix.shape());
    ops::cast(matrix, x, stream);
  }
  // The smaller of the two Gram matrices: of the columns where there are fewer of them.
  using ops::Transpose;
  const bool is_tall = x.size(0) > x.size(1);
  const std::int64_t less = is_tall ? x.size(1) : x.size(0);
  const Tensor gram = alloc({less, less}), update = alloc({less, less});
  Tensor next = alloc(x.shape());
  for (int step = 0; step < steps; ++step) {
    ops::gemm(x, is_tall ? Transpose::yes : Transpose::no, x,
              is_tall ? Transpose::no : Transpose::yes, gram, {}, stream);
    ops::copy(gram, update, stream);
    ops::gemm(gram, Transpose::no, gram, Transpose::no, update, {.alpha = kC, .beta = kB}, stream);
    ops::copy(x, next, stream);
    ops::gemm(is_tall ? x : update, Transpose::no, is_tall ? update : x, Transpose::no, next,
              {.alpha = 1.0, .beta = kA}, stream);
    std::swap(x, next);
  }
  return x;
}

}  // namespace heddle
