#pragma once

// Device code only. What the attention kernels are given.

#include <optional>
#include <type_traits>

#include "ops/attention.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {

template <class T>
struct HeadView {
  T* data = nullptr;
  std::int64_t batch = 0, position = 0, head = 0;  // strides

  HeadView() = default;
  HeadView(T* rows, std::int64_t batch_stride, std::int64_t position_stride,
           std::int64_t head_stride)
      : data(rows), batch(batch_stride), position(position_stride), head(head_stride) {}
  HeadView(const Tensor& t)
      : data(reinterpret_cast<T*>(t.bytes())),
        batch(t.stride(0)),
        position(t.stride(1)),
        head(t.stride(2)) {}
  __device__ T* at(int b, std::int64_t s, int h) const {
    return data + b * batch + s * position + h * head;
  }
};

/// Of the queries' statistics, in f32.
template <class T>
struct StatisticsView {
  T* data;
  std::int64_t batch, head;  // strides

  StatisticsView(const Tensor& t_BHS)
      : data(device_data<float>(t_BHS)), batch(t_BHS.stride(0)), head(t_BHS.stride(1)) {}
  __device__ T& at(int b, int h, std::int64_t s) const { return data[b * batch + h * head + s]; }
};

struct Problem {
  int heads, groups, width;
  std::int64_t queries, keys;
  /// Query s sees no key behind this + s: from -queries, where all see none, to keys.
  std::int64_t query_offset;
  const std::int32_t* first_key = nullptr;  // positions; absent: 0
  std::int64_t first_key_stride = 0;
  int key_offset = 0, step = 1;  // positions of keys
  std::int64_t window = 0;       // known to lie behind the first keys; 0: none
  int jump = 0, jump_at = 0;     // of blocks: queries from jump_at on see so many keys more
  float scale;
  float cap = 0.0F;  // of scores; 0: none
};

/// Which keys a query sees, counted from the first one given, whatever their positions. Of blocks,
/// queries may see all of the keys or none: the first key of these lies behind the last. Of whole
/// sequences the first key has position 0, and the last is the query itself.
template <bool kIsBlock>
struct Sight : Problem {
  __device__ int group_of(int h) const { return h / (heads / groups); }
  /// The first key from a position on.
  __device__ int key_from(int position) const {
    if constexpr (!kIsBlock) return position;
    const int ahead = max(position - key_offset, 0);
    return min(step == 1 ? ahead : (ahead + step - 1) / step, static_cast<int>(keys));
  }
  __device__ std::int64_t first_of(int b, std::int64_t s) const {
    return first_key == nullptr ? 0 : key_from(first_key[b * first_key_stride + s]);
  }
  __device__ std::int64_t last_of(std::int64_t s) const {
    return kIsBlock ? min(query_offset + s + (s >= jump_at ? jump : 0), keys - 1)
                    : query_offset + s;
  }
};

/// What is added up from block to block is f32.
template <class T, bool kIsBlock>
using ResultOf = std::conditional_t<kIsBlock, float, T>;

/// How results over other keys are merged into a row.
struct RowMerge {
  float old_share = 1.0F, new_share = 0.0F, lse;

  /// Only the difference of the two is raised to a power, and it is not positive: nothing
  /// overflows. Either may be -infinity, that of no keys.
  __device__ RowMerge(float old_lse, float new_lse) : lse(old_lse) {
    if (new_lse == -INFINITY) return;
    const float ratio = expf(-fabsf(old_lse - new_lse));
    const float larger = 1.0F / (1.0F + ratio), smaller = ratio * larger;
    old_share = old_lse >= new_lse ? larger : smaller;
    new_share = old_lse >= new_lse ? smaller : larger;
    lse = fmaxf(old_lse, new_lse) + log1pf(ratio);
  }
};

template <class T, bool kIsBlock>
struct ForwardOperands {
  Sight<kIsBlock> problem;
  HeadView<const T> q, k, v;
  HeadView<ResultOf<T, kIsBlock>> out;
  StatisticsView<float> lse;
  bool merges;  // of blocks: into out and lse, instead of writing them
};

/// Of whole sequences: delta is made of out, and gradients are written. Of blocks: delta is given,
/// and they are added.
template <class T, bool kIsBlock>
struct BackwardOperands {
  Sight<kIsBlock> problem;
  HeadView<const T> dout, q, k, v, out;
  StatisticsView<const float> lse;
  StatisticsView<float> delta;
  HeadView<ResultOf<T, kIsBlock>> dq, dk, dv;
};

/// The tensors of a call, of whole sequences or, without `out`, of a block.
struct BackwardCall {
  const Tensor &dout_BSHK, &q_BSHK, &k_BTGK, &v_BTGK;
  const Tensor* out_BSHK;
  const Tensor &lse_BHS, &delta_BHS;
  const Tensor &dq_BSHK, &dk_BTGK, &dv_BTGK;

  bool is_block() const { return out_BSHK == nullptr; }
  std::int64_t batch() const { return q_BSHK.size(0); }

  template <class T, bool kIsBlock>
  BackwardOperands<T, kIsBlock> operands(const Problem& problem) const {
    return {.problem = {problem},
            .dout = dout_BSHK,
            .q = q_BSHK,
            .k = k_BTGK,
            .v = v_BTGK,
            .out = kIsBlock ? HeadView<const T>() : HeadView<const T>(*out_BSHK),
            .lse = lse_BHS,
            .delta = delta_BHS,
            .dq = dq_BSHK,
            .dk = dk_BTGK,
            .dv = dv_BTGK};
  }
};

}  // namespace heddle::ops::cuda
