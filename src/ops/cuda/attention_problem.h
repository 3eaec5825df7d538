#pragma once

// Device code only. What the attention kernels are given.

#include "ops/attention.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {

template <class T>
struct HeadView {
  T* data;
  std::int64_t batch, position, head;  // strides

  HeadView(const Tensor& t)
      : data(reinterpret_cast<T*>(t.bytes())),
        batch(t.stride(0)),
        position(t.stride(1)),
        head(t.stride(2)) {}
  __device__ T* at(int b, std::int64_t s, int h) const {
    return data + b * batch + s * position + h * head;
  }
};

struct Problem {
  int heads, groups, width;
  std::int64_t queries, keys, query_offset;
  const std::int32_t* first_key = nullptr;  // absent: 0
  std::int64_t first_key_stride = 0;
  float scale;

  __device__ int group_of(int h) const { return h / (heads / groups); }
  __device__ std::int64_t first_of(int b, std::int64_t s) const {
    return first_key == nullptr ? 0 : first_key[b * first_key_stride + s];
  }
  __device__ bool sees(std::int64_t first, std::int64_t s, std::int64_t j) const {
    return j >= first && j <= query_offset + s;
  }
  /// Of a query's statistics.
  __device__ std::int64_t row(int b, int h, std::int64_t s) const {
    return (static_cast<std::int64_t>(b) * heads + h) * queries + s;
  }
};

template <class T>
struct ForwardOperands {
  Problem problem;
  HeadView<const T> q, k, v;
  HeadView<T> out;
  float* lse;
};

template <class T>
struct BackwardOperands {
  Problem problem;
  HeadView<const T> dout, q, k, v, out;
  const float* lse;
  float* delta;
  HeadView<T> dq, dk, dv;
};

}  // namespace heddle::ops::cuda
