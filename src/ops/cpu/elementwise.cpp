#include "ops/elementwise.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/row_sums.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

void add(const Tensor& a, const Tensor& b, const Tensor& y, Stream& stream) {
  visit_float(y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *pa = a.data<T>(), *pb = b.data<T>(), *py = y.data<T>();
    parallel_pieces<3>(stream, {&a, &b, &y}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, pa + at[0] + i), hn::LoadU(d, pb + at[1] + i)), d,
                   py + at[2] + i);
      });
    });
  });
}

void scale(const Tensor& y, double factor, Stream& stream) {
  visit_float(y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T* const py = y.data<T>();
    const T f = static_cast<T>(factor);
    parallel_pieces<1>(stream, {&y}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        T* const p = py + at[0] + i;
        hn::StoreU(hn::Mul(hn::LoadU(d, p), hn::Set(d, f)), d, p);
      });
    });
  });
}

void add_bias(const Tensor& y_TN, const Tensor& b_N, Stream& stream) {
  visit_float(y_TN.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *y = y_TN.data<T>(), *b = b_N.data<T>();
    const std::int64_t n = y_TN.size(1), stride = y_TN.stride(0);
    parallel_for(stream, y_TN.size(0), kGrain / std::max<std::int64_t>(n, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t row = begin; row < end; ++row) {
                     T* const to = y + row * stride;
                     for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                       hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, b + i)), d, to + i);
                     });
                   }
                 });
  });
}

void bias_backward(const Tensor& dy_TN, const Tensor& db_N, Stream& stream) {
  visit_float(dy_TN.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T* const dy = dy_TN.data<T>();
    const std::int64_t n = dy_TN.size(1), stride = dy_TN.stride(0);
    add_row_sums<T, 1>(stream, dy_TN.size(0), n, {db_N.data<T>()},
                       [&](std::int64_t row, const std::array<T*, 1>& sums) HWY_ATTR {
                         T* const db = sums[0];
                         const T* const from = dy + row * stride;
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           hn::StoreU(hn::Add(hn::LoadU(d, db + i), hn::LoadU(d, from + i)), d,
                                      db + i);
                         });
                       });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(add);
HWY_EXPORT(scale);
HWY_EXPORT(add_bias);
HWY_EXPORT(bias_backward);

namespace {

template <class T>
void fill_as(const Tensor& y, double value, Stream& stream) {
  T* const py = y.data<T>();
  parallel_pieces<1>(stream, {&y}, [&](const auto& at, std::int64_t n) {
    std::fill_n(py + at[0], n, static_cast<T>(value));
  });
}

}  // namespace

void fill(const Tensor& y, double value, Stream& stream) {
  if (y.dtype() == DType::i32) return fill_as<std::int32_t>(y, value, stream);
  visit_float(y.dtype(), [&](auto zero) { fill_as<decltype(zero)>(y, value, stream); });
}

void copy(const Tensor& x, const Tensor& y, Stream& stream) {
  const auto element = static_cast<std::int64_t>(size_of(y.dtype()));
  std::byte *px = x.bytes(), *py = y.bytes();
  parallel_pieces<2>(stream, {&x, &y}, [&](const auto& at, std::int64_t n) {
    std::memmove(py + at[1] * element, px + at[0] * element, static_cast<std::size_t>(n * element));
  });
}

void add(const Tensor& a, const Tensor& b, const Tensor& y, Stream& stream) {
  HEDDLE_DISPATCH(add, y.dtype())(a, b, y, stream);
}

void accumulate(const Tensor& x, const Tensor& y, Stream& stream) { add(x, y, y, stream); }

void scale(const Tensor& y, double factor, Stream& stream) {
  HEDDLE_DISPATCH(scale, y.dtype())(y, factor, stream);
}

void add_bias(const Tensor& y_TN, const Tensor& b_N, Stream& stream) {
  HEDDLE_DISPATCH(add_bias, y_TN.dtype())(y_TN, b_N, stream);
}

void bias_backward(const Tensor& dy_TN, const Tensor& db_N, Stream& stream) {
  HEDDLE_DISPATCH(bias_backward, dy_TN.dtype())(dy_TN, db_N, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
