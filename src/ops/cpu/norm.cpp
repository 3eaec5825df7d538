#include "ops/norm.h"

#include <cmath>

#include "ops/backend.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

/// Calls body(row, offsets) for every row of tensors of shape [..., D], on the stream's threads.
template <int N, class Body>
void parallel_rows(Stream& stream, const std::array<const Tensor*, N>& tensors, const Body& body) {
  const Rows<N> rows(tensors, Rows<N>::Merge::leading);
  const std::int64_t grain = kGrain / std::max<std::int64_t>(rows.length(), 1) + 1;
  parallel_for(stream, rows.count(), grain, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t row = begin; row < end; ++row) body(row, rows.offsets(row));
  });
}

void rms_norm_forward(const Tensor& x, const Tensor& w_D, double eps, const Tensor& y,
                      const Tensor& rstd, Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    T *px = x.data<T>(), *py = y.data<T>(), *w = w_D.data<T>(), *scales = rstd.data<T>();
    parallel_rows<2>(stream, {&x, &y}, [&](std::int64_t row, const auto& at) HWY_ATTR {
      const T* const from = px + at[0];
      T* const to = py + at[1];
      const T squares = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = hn::LoadU(d, from + i);
        return hn::Mul(v, v);
      });
      const T r = T{1} / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      scales[row] = r;
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto scaled = hn::Mul(hn::LoadU(d, from + i), hn::Set(d, r));
        hn::StoreU(hn::Mul(scaled, hn::LoadU(d, w + i)), d, to + i);
      });
    });
  });
}

// With h = x * rstd and g = dy * w: dx = rstd * (g - h * mean(g * h)).
void rms_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                             const Tensor& rstd, const Tensor& dx, Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    T *pdy = dy.data<T>(), *px = x.data<T>(), *pdx = dx.data<T>();
    T *w = w_D.data<T>(), *scales = rstd.data<T>();
    parallel_rows<3>(stream, {&dy, &x, &dx}, [&](std::int64_t row, const auto& at) HWY_ATTR {
      const T *g = pdy + at[0], *from = px + at[1];
      T* const to = pdx + at[2];
      const T r = scales[row];
      const T dot = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto gw = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, w + i));
        return hn::Mul(gw, hn::LoadU(d, from + i));
      });
      const T back = r * r * r * dot / static_cast<T>(n);
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto gw = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, w + i));
        const auto pull = hn::Mul(hn::LoadU(d, from + i), hn::Set(d, back));
        hn::StoreU(hn::MulSub(gw, hn::Set(d, r), pull), d, to + i);
      });
    });
  });
}

void rms_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dw_D, Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    const Rows<2> rows({&dy, &x}, Rows<2>::Merge::leading);
    T *pdy = dy.data<T>(), *px = x.data<T>(), *scales = rstd.data<T>();
    add_row_sums<T, 1>(stream, rows.count(), n, {dw_D.data<T>()},
                       [&](std::int64_t row, const std::array<T*, 1>& sums) HWY_ATTR {
                         T* const dw = sums[0];
                         const auto at = rows.offsets(row);
                         const T *g = pdy + at[0], *from = px + at[1];
                         const T r = scales[row];
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           const auto h = hn::Mul(hn::LoadU(d, from + i), hn::Set(d, r));
                           hn::StoreU(hn::MulAdd(hn::LoadU(d, g + i), h, hn::LoadU(d, dw + i)), d,
                                      dw + i);
                         });
                       });
  });
}

void layer_norm_forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps,
                        const Tensor& y, const Tensor& mean, const Tensor& rstd, Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    T *px = x.data<T>(), *py = y.data<T>(), *w = w_D.data<T>(), *b = b_D.data<T>();
    T *means = mean.data<T>(), *scales = rstd.data<T>();
    parallel_rows<2>(stream, {&x, &y}, [&](std::int64_t row, const auto& at) HWY_ATTR {
      const T* const from = px + at[0];
      T* const to = py + at[1];
      const T sum = sum_vectors<T>(
          n, [=](auto d, std::int64_t i) HWY_ATTR { return hn::LoadU(d, from + i); });
      const T m = sum / static_cast<T>(n);
      const T squares = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto centred = hn::Sub(hn::LoadU(d, from + i), hn::Set(d, m));
        return hn::Mul(centred, centred);
      });
      const T r = T{1} / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      means[row] = m;
      scales[row] = r;
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto h = hn::Mul(hn::Sub(hn::LoadU(d, from + i), hn::Set(d, m)), hn::Set(d, r));
        hn::StoreU(hn::MulAdd(h, hn::LoadU(d, w + i), hn::LoadU(d, b + i)), d, to + i);
      });
    });
  });
}

// With h = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - h * mean(g * h)).
void layer_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                               Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    T *pdy = dy.data<T>(), *px = x.data<T>(), *pdx = dx.data<T>();
    T *w = w_D.data<T>(), *means = mean.data<T>(), *scales = rstd.data<T>();
    parallel_rows<3>(stream, {&dy, &x, &dx}, [&](std::int64_t row, const auto& at) HWY_ATTR {
      const T *g = pdy + at[0], *from = px + at[1];
      T* const to = pdx + at[2];
      const T m = means[row], r = scales[row];
      const T sum = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        return hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, w + i));
      });
      const T dot = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto gw = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, w + i));
        return hn::Mul(gw, hn::Sub(hn::LoadU(d, from + i), hn::Set(d, m)));
      });
      const T shift = sum / static_cast<T>(n);
      const T back = r * r * dot / static_cast<T>(n);
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto gw = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, w + i));
        const auto centred = hn::Sub(hn::LoadU(d, from + i), hn::Set(d, m));
        const auto inner = hn::NegMulAdd(centred, hn::Set(d, back), hn::Sub(gw, hn::Set(d, shift)));
        hn::StoreU(hn::Mul(inner, hn::Set(d, r)), d, to + i);
      });
    });
  });
}

void layer_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dw_D, const Tensor& db_D,
                                Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = x.size(-1);
    const Rows<2> rows({&dy, &x}, Rows<2>::Merge::leading);
    T *pdy = dy.data<T>(), *px = x.data<T>(), *means = mean.data<T>(), *scales = rstd.data<T>();
    const std::array<T*, 2> totals{dw_D.data<T>(), db_D.data<T>()};
    add_row_sums<T, 2>(stream, rows.count(), n, totals,
                       [&](std::int64_t row, const std::array<T*, 2>& sums) HWY_ATTR {
                         const auto at = rows.offsets(row);
                         const T *g = pdy + at[0], *from = px + at[1];
                         T *dw = sums[0], *db = sums[1];
                         const T m = means[row], r = scales[row];
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           const auto h = hn::Mul(hn::Sub(hn::LoadU(d, from + i), hn::Set(d, m)),
                                                  hn::Set(d, r));
                           const auto v = hn::LoadU(d, g + i);
                           hn::StoreU(hn::MulAdd(v, h, hn::LoadU(d, dw + i)), d, dw + i);
                           hn::StoreU(hn::Add(v, hn::LoadU(d, db + i)), d, db + i);
                         });
                       });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(rms_norm_forward);
HWY_EXPORT(rms_norm_backward_input);
HWY_EXPORT(rms_norm_backward_weight);
HWY_EXPORT(layer_norm_forward);
HWY_EXPORT(layer_norm_backward_input);
HWY_EXPORT(layer_norm_backward_weight);

}  // namespace

void rms_norm_forward(const Tensor& x, const Tensor& w_D, double eps, const Tensor& y,
                      const Tensor& rstd, Stream& stream) {
  HEDDLE_DISPATCH(rms_norm_forward, x.dtype())(x, w_D, eps, y, rstd, stream);
}

void rms_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                             const Tensor& rstd, const Tensor& dx, Stream& stream) {
  HEDDLE_DISPATCH(rms_norm_backward_input, x.dtype())(dy, x, w_D, rstd, dx, stream);
}

void rms_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dw_D, Stream& stream) {
  HEDDLE_DISPATCH(rms_norm_backward_weight, x.dtype())(dy, x, rstd, dw_D, stream);
}

void layer_norm_forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps,
                        const Tensor& y, const Tensor& mean, const Tensor& rstd, Stream& stream) {
  HEDDLE_DISPATCH(layer_norm_forward, x.dtype())(x, w_D, b_D, eps, y, mean, rstd, stream);
}

void layer_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                               Stream& stream) {
  HEDDLE_DISPATCH(layer_norm_backward_input, x.dtype())(dy, x, w_D, mean, rstd, dx, stream);
}

void layer_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dw_D, const Tensor& db_D,
                                Stream& stream) {
  HEDDLE_DISPATCH(layer_norm_backward_weight, x.dtype())(dy, x, mean, rstd, dw_D, db_D, stream);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& rstd,
                       const Tensor& addend, const Tensor& dx, const Tensor& dw_D, Stream& stream) {
  rms_norm_backward_weight(dy, x, rstd, dw_D, stream);
  rms_norm_backward_input(dy, x, w_D, rstd, dx, stream);
  if (addend.defined()) accumulate(addend, dx, stream);
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                         const Tensor& rstd, const Tensor& addend, const Tensor& dx,
                         const Tensor& dw_D, const Tensor& db_D, Stream& stream) {
  layer_norm_backward_weight(dy, x, mean, rstd, dw_D, db_D, stream);
  layer_norm_backward_input(dy, x, w_D, mean, rstd, dx, stream);
  if (addend.defined()) accumulate(addend, dx, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
