#include "ops/cuda/grouped_plain.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kSide = 64, kDepth = 16, kSideThreads = 16, kPlainThreads = 256;
constexpr int kOwn = kSide / kSideThreads;  // rows and columns of a thread

/// The element of `outer` and of what is summed over, `inner`.
template <class T>
struct Factor {
  const T* data;
  std::int64_t outer_stride, inner_stride;
  std::int64_t outer_count;
};

/// 64 x 64 of a product from rows `row` and columns `column` on: thread (y, x) of 16 x 16 has rows
/// y + 16 i and columns x + 16 j.
template <class T>
__device__ void multiply_plain(const Factor<T>& a, const Factor<T>& b, std::int64_t row,
                               std::int64_t column, std::int64_t summed,
                               float (&sums)[kOwn][kOwn]) {
  __shared__ float of_a[kDepth][kSide + 1], of_b[kDepth][kSide + 1];
  const auto thread = static_cast<int>(threadIdx.x);
  const int x = thread % kSideThreads, y = thread / kSideThreads;
  const auto load = [&](const Factor<T>& factor, std::int64_t first, std::int64_t k0,
                        float(&to)[kDepth][kSide + 1]) {
    const bool along = factor.inner_stride == 1;
    for (int i = thread; i < kSide * kDepth; i += kPlainThreads) {
      const int outer = along ? i / kDepth : i % kSide, inner = along ? i % kDepth : i / kSide;
      const bool is_inside = first + outer < factor.outer_count && k0 + inner < summed;
      to[inner][outer] = is_inside ? to_f32(factor.data[(first + outer) * factor.outer_stride +
                                                        (k0 + inner) * factor.inner_stride])
                                   : 0.0F;
    }
  };
  for (std::int64_t k0 = 0; k0 < summed; k0 += kDepth) {
    load(a, row, k0, of_a);
    load(b, column, k0, of_b);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float left[kOwn], right[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        left[i] = of_a[k][y + kSideThreads * i];
        right[i] = of_b[k][x + kSideThreads * i];
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
}

/// c = sums + beta * c, where those are inside.
template <class C>
__device__ void put_plain(const float (&sums)[kOwn][kOwn], C* c, std::int64_t stride,
                          std::int64_t row, std::int64_t column, std::int64_t rows,
                          std::int64_t columns, float beta) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const std::int64_t r = row + thread / kSideThreads + kSideThreads * i;
      const std::int64_t n = column + thread % kSideThreads + kSideThreads * j;
      if (r >= rows || n >= columns) continue;
      C& to = c[r * stride + n];
      to = from_f32<C>(beta == 0.0F ? sums[i][j] : fmaf(beta, to_f32(to), sums[i][j]));
    }
  }
}

/// Blocks in x are for tiles of rows: as many as there may be, of all experts together.
template <class T, class C>
__global__ void __launch_bounds__(kPlainThreads)
    grouped_rows_kernel(Factor<T> a, Factor<T> b, std::int64_t b_matrix,
                        const std::int32_t* offsets, int experts, std::int64_t summed, C* c,
                        std::int64_t c_stride) {
  int expert = 0;
  std::int64_t tile = blockIdx.x;
  for (; expert < experts; ++expert) {
    const std::int64_t tiles = (offsets[expert + 1] - offsets[expert] + kSide - 1) / kSide;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (expert == experts) return;
  a.data += offsets[expert] * a.outer_stride;
  a.outer_count = offsets[expert + 1] - offsets[expert];
  b.data += expert * b_matrix;
  const std::int64_t row = tile * kSide, column = static_cast<std::int64_t>(blockIdx.y) * kSide;
  float sums[kOwn][kOwn] = {};
  multiply_plain(a, b, row, column, summed, sums);
  put_plain(sums, c + offsets[expert] * c_stride, c_stride, row, column, a.outer_count,
            b.outer_count, 0.0F);
}

/// Of rows [first, first + held).
template <class T, class C>
__global__ void __launch_bounds__(kPlainThreads)
    grouped_weight_kernel(Factor<T> a, Factor<T> b, const std::int32_t* offsets, std::int64_t first,
                          std::int64_t held, float beta, C* c, std::int64_t c_matrix,
                          std::int64_t c_stride) {
  const std::int64_t from = offsets[blockIdx.z] - first, to = offsets[blockIdx.z + 1] - first;
  const std::int64_t begin = from < 0 ? 0 : from, rows = (to < held ? to : held) - begin;
  if (rows <= 0 && !(from == to && first == 0)) return;
  if (from < 0) beta = 1.0F;
  a.data += begin * a.inner_stride;
  b.data += begin * b.inner_stride;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kSide;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kSide;
  float sums[kOwn][kOwn] = {};
  multiply_plain(a, b, row, column, rows, sums);
  put_plain(sums, c + blockIdx.z * c_matrix, c_stride, row, column, a.outer_count, b.outer_count,
            beta);
}

/// Calls body(T{}, C{}) with the types of factors and result: the same, or bf16 into f32.
template <class Body>
void visit_product(const Tensor& a, const Tensor& c, const Body& body) {
  visit_float(a.dtype(), [&](auto t) {
    if (c.dtype() == a.dtype()) {
      body(t, t);
    } else {
      body(t, float{});
    }
  });
}

}  // namespace

void grouped_gemm_plain(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                        const Tensor& offsets_E1, const Tensor& c_RN, const StreamState& state) {
  const bool is_transposed = transpose_b == Transpose::yes;
  visit_product(a_RK, c_RN, [&](auto t, auto r) {
    using T = decltype(t);
    using C = decltype(r);
    const Factor<T> a{device_data<T>(a_RK), a_RK.stride(0), 1, 0};
    const std::int64_t row = b_EXX.stride(1);
    const Factor<T> b{device_data<T>(b_EXX), is_transposed ? row : 1, is_transposed ? 1 : row,
                      c_RN.size(1)};
    const std::int64_t experts = b_EXX.size(0);
    const dim3 blocks(blocks_for(c_RN.size(0), kSide) + static_cast<unsigned>(experts),
                      blocks_for(c_RN.size(1), kSide));
    grouped_rows_kernel<T, C><<<blocks, kPlainThreads, 0, state.stream>>>(
        a, b, b_EXX.stride(0), device_data<std::int32_t>(offsets_E1), static_cast<int>(experts),
        a_RK.size(1), device_data<C>(c_RN), c_RN.stride(0));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

void grouped_gemm_weight_plain(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                               std::int64_t first, double beta, const Tensor& c_EMN,
                               const StreamState& state) {
  visit_product(a_PM, c_EMN, [&](auto t, auto r) {
    using T = decltype(t);
    using C = decltype(r);
    const Factor<T> a{device_data<T>(a_PM), 1, a_PM.stride(0), c_EMN.size(1)},
        b{device_data<T>(b_PN), 1, b_PN.stride(0), c_EMN.size(2)};
    const dim3 blocks(blocks_for(c_EMN.size(1), kSide), blocks_for(c_EMN.size(2), kSide),
                      static_cast<unsigned>(c_EMN.size(0)));
    grouped_weight_kernel<T, C><<<blocks, kPlainThreads, 0, state.stream>>>(
        a, b, device_data<std::int32_t>(offsets_E1), first, a_PM.size(0), static_cast<float>(beta),
        device_data<C>(c_EMN), c_EMN.stride(0), c_EMN.stride(1));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace heddle::ops::cuda
