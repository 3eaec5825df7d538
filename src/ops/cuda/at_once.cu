#include <algorithm>

#include "ops/at_once.h"
#include "ops/cuda/attention_problem.h"
#include "ops/cuda/map.h"
#include "ops/cuda/stream_state.h"
#include "tensor/device_runtime.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kUnit = 16;  // bytes, that a thread moves at a time
constexpr int kMostSources = 3;     // of a target, at a time

/// Rows at a common distance, in units.
struct RowsInUnits {
  float4* first;
  unsigned stride;
};

struct Target {
  RowsInUnits to, from[kMostSources];
  int sources;
  unsigned length, units;  // of a row, of all rows
  unsigned first_block;    // those before are for the targets before
};

/// As many as the parameters of a kernel have room for.
struct Targets {
  static constexpr int kMost = 40;
  Target all[kMost];
  int count = 0;
};

__device__ float4 sum_of(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// Adds, or of one source copies.
template <bool kAdds>
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ Targets targets) {
  constexpr int kUnroll = kAdds ? 2 : 4, kMost = kAdds ? kMostSources : 1;
  int at = 0;
  while (at + 1 < targets.count && targets.all[at + 1].first_block <= blockIdx.x) ++at;
  const Target& target = targets.all[at];
  const unsigned first = (blockIdx.x - target.first_block) * (kThreads * kUnroll) + threadIdx.x;
  float4 values[kUnroll][kMost], sum[kUnroll];  // all are on their way before the first is needed
  float4* to[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const unsigned unit = min(first + i * kThreads, target.units - 1);
    const unsigned row = unit / target.length, column = unit - row * target.length;
    const auto place = [&](const RowsInUnits& rows) {
      return rows.first + static_cast<std::int64_t>(row) * rows.stride + column;
    };
    to[i] = place(target.to);
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
      if (n < target.sources) values[i][n] = *place(target.from[n]);
    }
    if constexpr (kAdds) sum[i] = *to[i];
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads >= target.units) break;
    if constexpr (kAdds) {
#pragma unroll
      for (int n = 0; n < kMost; ++n) {
        if (n < target.sources) sum[i] = sum_of(sum[i], values[i][n]);
      }
      *to[i] = sum[i];
    } else {
      *to[i] = values[i][0];
    }
  }
}

/// Adds a source to the target, of which it is the first or lies as `target` says. False where rows
/// are others than the kernel takes.
bool add_source(const Tensor& from, const Tensor& to, Target& target) {
  const RowLayout<2> layout({&from, &to}, Rows<2>::Merge::all);
  const auto element = static_cast<std::int64_t>(size_of(to.dtype()));
  const std::int64_t length = layout.length * element, units = layout.rows * length / kUnit;
  std::int64_t strides[2] = {length, length};
  for (int n = 0; n < 2 && layout.levels == 1; ++n) strides[n] = layout.strides[0][n] * element;
  const auto address = [](const Tensor& t) { return reinterpret_cast<std::intptr_t>(t.bytes()); };
  const std::int64_t all = length | strides[0] | strides[1] | address(from) | address(to);
  constexpr std::int64_t kMostUnits = std::int64_t{1} << 31;
  if (layout.levels > 1 || all % kUnit != 0 || units >= kMostUnits) return false;
  const auto in_units = [](std::int64_t bytes) { return static_cast<unsigned>(bytes / kUnit); };
  const auto rows_of = [&](const Tensor& t, std::int64_t stride) {
    return RowsInUnits{reinterpret_cast<float4*>(t.bytes()), in_units(stride)};
  };
  if (target.sources > 0 && target.length != in_units(length)) return false;
  target.to = rows_of(to, strides[1]);
  target.from[target.sources++] = rows_of(from, strides[0]);
  target.length = in_units(length);
  target.units = static_cast<unsigned>(units);
  return true;
}

template <bool kAdds>
void launch(std::span<const Target> all, Stream& stream) {
  const device_runtime::LaunchLock lock;
  const cudaStream_t queue = state_of(stream).stream;
  constexpr unsigned kOfBlock = kThreads * (kAdds ? 2 : 4);
  for (std::size_t begin = 0; begin < all.size(); begin += Targets::kMost) {
    Targets targets;
    unsigned blocks = 0;
    for (std::size_t i = begin; i < std::min(all.size(), begin + Targets::kMost); ++i) {
      Target& target = targets.all[targets.count++];
      target = all[i];
      target.first_block = blocks;
      blocks += (target.units + kOfBlock - 1) / kOfBlock;
    }
    move_kernel<kAdds><<<blocks, kThreads, 0, queue>>>(targets);
    HEDDLE_CUDA(cudaGetLastError());
  }
}

struct PartialView {
  HeadView<const float> rows;
  StatisticsView<const float> lse;
};
struct MergedParts {
  PartialView parts[kMostSources];
  int count;
  HeadView<float> out;
  StatisticsView<float> lse;
  std::int64_t rows, queries;
  int heads;
};

/// A row of [batch, query, head] for as many threads as it has fours, two rows at a time.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergedParts m) {
  constexpr int kLanes = kWidth / 4, kRows = 2;
  const std::int64_t group =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float4 part[kRows][kMostSources], sum[kRows];  // all are on their way before the first is needed
  float part_lse[kRows][kMostSources], sum_lse[kRows];
  float4* to[kRows];
  float* lse_at[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = min(group * kRows + i, m.rows - 1);
    const std::int64_t bs = row / m.heads, s = bs % m.queries;
    const int h = static_cast<int>(row % m.heads), b = static_cast<int>(bs / m.queries);
    to[i] = reinterpret_cast<float4*>(m.out.at(b, s, h)) + lane;
    lse_at[i] = &m.lse.at(b, h, s);
#pragma unroll
    for (int n = 0; n < kMostSources; ++n) {
      part_lse[i][n] = -INFINITY;
      if (n >= m.count) continue;
      part[i][n] = reinterpret_cast<const float4*>(m.parts[n].rows.at(b, s, h))[lane];
      part_lse[i][n] = m.parts[n].lse.at(b, h, s);
    }
    sum[i] = *to[i];
    sum_lse[i] = *lse_at[i];
  }
  __syncwarp();  // all lanes have read them
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (group * kRows + i >= m.rows) break;
#pragma unroll
    for (int n = 0; n < kMostSources; ++n) {
      if (part_lse[i][n] == -INFINITY) continue;
      const RowMerge merge(sum_lse[i], part_lse[i][n]);
      const auto merged = [&](float x, float y) {
        return merge.new_share * x + merge.old_share * y;
      };
      const float4 x = part[i][n], y = sum[i];
      sum[i] = {merged(x.x, y.x), merged(x.y, y.y), merged(x.z, y.z), merged(x.w, y.w)};
      sum_lse[i] = merge.lse;
    }
    *to[i] = sum[i];
    if (lane == 0) *lse_at[i] = sum_lse[i];
  }
}

}  // namespace

bool copy_at_once(std::span<const Copied> copies, Stream& stream) {
  std::vector<Target> all;
  for (const auto& [from, to] : copies) {
    if (to.count() > 0 && !add_source(from, to, all.emplace_back())) return false;
  }
  launch<false>(all, stream);
  return true;
}

bool accumulate_at_once(std::span<const Summed> sums, Stream& stream) {
  std::vector<std::vector<Target>> passes;
  for (const auto& [from, to] : sums) {
    if (to.dtype() != DType::f32) return false;
    for (std::size_t n = 0; n < from.size() && to.count() > 0; ++n) {
      const std::size_t pass = n / kMostSources;
      if (pass >= passes.size()) passes.emplace_back();
      if (n % kMostSources == 0) passes[pass].emplace_back();
      if (!add_source(from[n], to, passes[pass].back())) return false;
    }
  }
  for (const std::vector<Target>& pass : passes) launch<true>(pass, stream);
  return true;
}

bool merge_at_once(std::span<const PartialRows> parts, const Tensor& out_BSHK,
                   const Tensor& lse_BHS, Stream& stream) {
  const std::int64_t width = out_BSHK.size(3), rows = out_BSHK.count() / width;
  const bool are_aligned =
      is_aligned(out_BSHK) && std::ranges::all_of(parts, [](const PartialRows& part) {
        return is_aligned(part.rows_BSHK);
      });
  if ((width != 64 && width != 128) || out_BSHK.dtype() != DType::f32 || !are_aligned) return false;
  if (rows == 0) return true;
  const device_runtime::LaunchLock lock;
  const auto kernel = width == 64 ? merge_kernel<64> : merge_kernel<128>;
  for (std::size_t begin = 0; begin < parts.size(); begin += kMostSources) {
    const auto view = [&](std::size_t n) {
      const auto& [part, lse] = parts[std::min(begin + n, parts.size() - 1)];
      return PartialView{part, lse};
    };
    const auto count = std::min<std::size_t>(parts.size() - begin, kMostSources);
    const MergedParts merged{.parts = {view(0), view(1), view(2)},
                             .count = static_cast<int>(count),
                             .out = out_BSHK,
                             .lse = lse_BHS,
                             .rows = rows,
                             .queries = out_BSHK.size(1),
                             .heads = static_cast<int>(out_BSHK.size(2))};
    const auto of_block = static_cast<int>(kThreads / (width / 4) * 2);
    kernel<<<blocks_for(rows, of_block), kThreads, 0, state_of(stream).stream>>>(merged);
    HEDDLE_CUDA(cudaGetLastError());
  }
  return true;
}

}  // namespace heddle::ops::cuda
