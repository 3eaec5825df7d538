#include "ops/at_once.h"
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/cuda/attention_problem.h"
#include "ops/cuda/reductions.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// A warp for each row of [batch, head, query].
struct Rows {
  std::int64_t count, queries;
  int heads, width;

  explicit Rows(const Tensor& t_BSHK)
      : count(t_BSHK.size(0) * t_BSHK.size(1) * t_BSHK.size(2)),
        queries(t_BSHK.size(1)),
        heads(static_cast<int>(t_BSHK.size(2))),
        width(static_cast<int>(t_BSHK.size(3))) {}

  /// Calls body(b, h, s) for the warp's row, if it has one.
  template <class Body>
  __device__ void visit(const Body& body) const {
    const std::int64_t row =
        static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
    if (row >= count) return;
    const std::int64_t bh = row / queries;
    body(static_cast<int>(bh / heads), static_cast<int>(bh % heads), row % queries);
  }
  unsigned blocks() const { return blocks_for(count, kThreads / 32); }
};

__device__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

template <class T, class Out>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(Rows rows, HeadView<const T> dout, HeadView<const Out> out,
                 StatisticsView<float> delta) {
  rows.visit([&](int b, int h, std::int64_t s) {
    const T* const x = dout.at(b, s, h);
    const Out* const y = out.at(b, s, h);
    float sum = 0.0F;
    for (int k = lane_id(); k < rows.width; k += 32) sum += to_f32(x[k]) * to_f32(y[k]);
    sum = reduce_lanes(sum, Sum{});
    if (lane_id() == 0) delta.at(b, h, s) = sum;
  });
}

/// The sum of x * y over 8 neighbours.
__device__ float sum_of_eight(const Pack<Bf16, 8>& x, const float* y) {
  const auto low = Pack<float, 4>::load(y), high = Pack<float, 4>::load(y + 4);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += x.get(i) * low.get(i) + x.get(i + 4) * high.get(i);
  return sum;
}
__device__ float sum_of_eight(const Pack<Bf16, 8>& x, const Bf16* y) {
  const auto all = Pack<Bf16, 8>::load(y);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x.get(i) * all.get(i);
  return sum;
}

/// The same of bf16, packs of 8 at a time: 8 lanes for each row of [batch, query, head].
template <class Out>
__global__ void __launch_bounds__(kThreads)
    packed_delta_kernel(Rows rows, HeadView<const Bf16> dout, HeadView<const Out> out,
                        StatisticsView<float> delta) {
  constexpr int kLanes = 8;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool exists = row < rows.count;
  const std::int64_t bs = row / rows.heads, s = bs % rows.queries;
  const int h = static_cast<int>(row % rows.heads), b = static_cast<int>(bs / rows.queries);
  float sum = 0.0F;
  for (int k = lane_id() % kLanes * 8; exists && k < rows.width; k += 8 * kLanes) {
    sum += sum_of_eight(Pack<Bf16, 8>::load(dout.at(b, s, h) + k), out.at(b, s, h) + k);
  }
  sum = reduce_lanes<kLanes>(sum, Sum{});
  if (exists && lane_id() % kLanes == 0) delta.at(b, h, s) = sum;
}

__global__ void __launch_bounds__(kThreads)
    merge_kernel(Rows rows, HeadView<const float> part, StatisticsView<const float> part_lse,
                 HeadView<float> out, StatisticsView<float> lse) {
  rows.visit([&](int b, int h, std::int64_t s) {
    const float new_lse = part_lse.at(b, h, s);
    const RowMerge merge(lse.at(b, h, s), new_lse);
    __syncwarp();  // all lanes have read it
    if (new_lse == -INFINITY) return;
    const float* const from = part.at(b, s, h);
    float* const to = out.at(b, s, h);
    for (int k = lane_id(); k < rows.width; k += 32) {
      to[k] = merge.new_share * from[k] + merge.old_share * to[k];
    }
    if (lane_id() == 0) lse.at(b, h, s) = merge.lse;
  });
}

}  // namespace

void attention_merge(const Tensor& part_BSHK, const Tensor& part_lse_BHS, const Tensor& out_BSHK,
                     const Tensor& lse_BHS, Stream& stream) {
  const PartialRows part{part_BSHK, part_lse_BHS};
  if (out_BSHK.count() == 0 || merge_at_once({&part, 1}, out_BSHK, lse_BHS, stream)) return;
  const Rows rows(out_BSHK);
  merge_kernel<<<rows.blocks(), kThreads, 0, state_of(stream).stream>>>(
      rows, part_BSHK, part_lse_BHS, out_BSHK, lse_BHS);
  HEDDLE_CUDA(cudaGetLastError());
}

void attention_delta(const Tensor& dout_BSHK, const Tensor& out_BSHK, const Tensor& delta_BHS,
                     Stream& stream) {
  if (out_BSHK.count() == 0) return;
  const Rows rows(out_BSHK);
  const cudaStream_t queue = state_of(stream).stream;
  if (dout_BSHK.dtype() == DType::bf16 && rows.width % 8 == 0 && is_aligned(dout_BSHK) &&
      is_aligned(out_BSHK)) {
    const unsigned blocks = blocks_for(rows.count, kThreads / 8);
    if (out_BSHK.dtype() == DType::bf16) {
      packed_delta_kernel<Bf16>
          <<<blocks, kThreads, 0, queue>>>(rows, dout_BSHK, out_BSHK, delta_BHS);
    } else {
      packed_delta_kernel<float>
          <<<blocks, kThreads, 0, queue>>>(rows, dout_BSHK, out_BSHK, delta_BHS);
    }
    HEDDLE_CUDA(cudaGetLastError());
    return;
  }
  const auto run = [&](auto in, auto result) {
    delta_kernel<decltype(in), decltype(result)>
        <<<rows.blocks(), kThreads, 0, queue>>>(rows, dout_BSHK, out_BSHK, delta_BHS);
    HEDDLE_CUDA(cudaGetLastError());
  };
  visit_float(dout_BSHK.dtype(), [&](auto in) {
    visit_float(out_BSHK.dtype(), [&](auto result) { run(in, result); });
  });
}

}  // namespace heddle::ops::cuda
