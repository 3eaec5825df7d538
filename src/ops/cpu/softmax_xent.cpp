#include "ops/softmax_xent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/softmax_xent.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/exp2-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

template <class T>
T max_of(const T* row, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto lowest = hn::Set(d, std::numeric_limits<T>::lowest());
  auto m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, row + i));
    m1 = hn::Max(m1, hn::LoadU(d, row + i + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, row + i + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, row + i + 3 * lanes));
  }
  T max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
  for (; i < n; ++i) max = std::max(max, row[i]);
  return max;
}

/// Sum of e^(row - max), and row itself replaced by these where `kStores`.
template <bool kStores, class T>
double sum_of_exponentials(T* row, std::int64_t n, T max) {
  constexpr auto kLog2E = static_cast<T>(1.44269504088896340736);
  // Lanes are added up in T only this far: the sum of a long row keeps its precision.
  constexpr std::int64_t kChunk = 4096;
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto power = [=](auto tag, std::int64_t i) HWY_ATTR {
    const auto difference = hn::Sub(hn::LoadU(tag, row + i), hn::Set(tag, max));
    const auto p = exp2(tag, hn::Mul(difference, hn::Set(tag, kLog2E)));
    if constexpr (kStores) hn::StoreU(p, tag, row + i);
    return p;
  };
  double total = 0;
  std::int64_t i = 0;
  while (i + lanes <= n) {
    const std::int64_t end = std::min(i + kChunk, n);
    auto s0 = hn::Zero(d), s1 = s0;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      s0 = hn::Add(s0, power(d, i));
      s1 = hn::Add(s1, power(d, i + lanes));
    }
    for (; i + lanes <= end; i += lanes) s0 = hn::Add(s0, power(d, i));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))));
  }
  for (; i < n; ++i) total += static_cast<double>(hn::GetLane(power(one, i)));
  return total;
}

template <class T>
double row_loss(const T* row, std::int64_t n, std::int32_t target) {
  const T max = max_of(row, n);
  const double sum = sum_of_exponentials<false>(const_cast<T*>(row), n, max);
  return static_cast<double>(max) - static_cast<double>(row[target]) + std::log(sum);
}

template <class T>
void scale_row(T* row, std::int64_t n, T factor) {
  for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
  });
}

template <class T>
double row_loss_and_gradient(T* row, std::int64_t n, std::int32_t target, double grad_scale) {
  const T max = max_of(row, n), chosen = row[target];
  const double sum = sum_of_exponentials<true>(row, n, max);
  const auto factor = static_cast<T>(grad_scale / sum);
  const double at_target = (static_cast<double>(row[target]) / sum - 1) * grad_scale;
  scale_row(row, n, factor);
  row[target] = static_cast<T>(at_target);
  return static_cast<double>(max) - static_cast<double>(chosen) + std::log(sum);
}

float max_f32(const float* row, std::int64_t n) { return max_of(row, n); }
double exponentials_f32(float* row, std::int64_t n, float max) {
  return sum_of_exponentials<true>(row, n, max);
}
void scale_f32(float* row, std::int64_t n, float factor) { scale_row(row, n, factor); }

double loss_f32(const float* row, std::int64_t n, std::int32_t target) {
  return row_loss(row, n, target);
}
double gradient_f32(float* row, std::int64_t n, std::int32_t target, double grad_scale) {
  return row_loss_and_gradient(row, n, target, grad_scale);
}
#if HWY_TARGET == HWY_STATIC_TARGET  // see dispatch-inl.h
double loss_f64(const double* row, std::int64_t n, std::int32_t target) {
  return row_loss(row, n, target);
}
double gradient_f64(double* row, std::int64_t n, std::int32_t target, double grad_scale) {
  return row_loss_and_gradient(row, n, target, grad_scale);
}
double max_f64(const double* row, std::int64_t n) { return max_of(row, n); }
double exponentials_f64(double* row, std::int64_t n, double max) {
  return sum_of_exponentials<true>(row, n, max);
}
void scale_f64(double* row, std::int64_t n, double factor) { scale_row(row, n, factor); }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(loss_f32);
HWY_EXPORT(gradient_f32);
HWY_EXPORT(max_f32);
HWY_EXPORT(exponentials_f32);
HWY_EXPORT(scale_f32);

double row_loss(const float* row, std::int64_t n, std::int32_t target) {
  return HWY_DYNAMIC_DISPATCH(loss_f32)(row, n, target);
}
double row_loss(const double* row, std::int64_t n, std::int32_t target) {
  return HWY_STATIC_DISPATCH(loss_f64)(row, n, target);
}
double row_gradient(float* row, std::int64_t n, std::int32_t target, double grad_scale) {
  return HWY_DYNAMIC_DISPATCH(gradient_f32)(row, n, target, grad_scale);
}
double row_gradient(double* row, std::int64_t n, std::int32_t target, double grad_scale) {
  return HWY_STATIC_DISPATCH(gradient_f64)(row, n, target, grad_scale);
}

float row_max(const float* row, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(max_f32)(row, n); }
double row_max(const double* row, std::int64_t n) { return HWY_STATIC_DISPATCH(max_f64)(row, n); }
double row_exponentials(float* row, std::int64_t n, float max) {
  return HWY_DYNAMIC_DISPATCH(exponentials_f32)(row, n, max);
}
double row_exponentials(double* row, std::int64_t n, double max) {
  return HWY_STATIC_DISPATCH(exponentials_f64)(row, n, max);
}
void scale_row(float* row, std::int64_t n, float factor) {
  HWY_DYNAMIC_DISPATCH(scale_f32)(row, n, factor);
}
void scale_row(double* row, std::int64_t n, double factor) {
  HWY_STATIC_DISPATCH(scale_f64)(row, n, factor);
}

/// Calls body(row, index) for every row of a matrix, on the stream's threads.
template <class T, class Body>
void for_each_row(const Tensor& x_TV, Stream& stream, const Body& body) {
  T* const x = x_TV.data<T>();
  const std::int64_t stride = x_TV.stride(0);
  const std::int64_t grain = kGrain / std::max<std::int64_t>(x_TV.size(1), 1) + 1;
  parallel_for(stream, x_TV.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(x + r * stride, static_cast<std::size_t>(r));
  });
}

/// Calls body(row, target, loss) for every row, on the stream's threads.
template <class T, class Body>
void for_rows(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
              Stream& stream, const Body& body) {
  const std::int64_t vocabulary = logits_TV.size(1);
  const std::span<std::int32_t> targets = targets_T.host<std::int32_t>();
  const std::span<double> losses = loss_T.host<double>();
  for (const std::int32_t target : targets) {
    HEDDLE_CHECK(target == kIgnoreTarget || (target >= 0 && target < vocabulary),
                 "target {} of a vocabulary of {}", target, vocabulary);
  }
  for_each_row<T>(logits_TV, stream,
                  [&](T* row, std::size_t at) { losses[at] = body(row, targets[at]); });
}

/// The column of a target among those that begin at `first`, or -1.
std::int64_t column_of(std::int32_t target, std::int64_t first, std::int64_t columns) {
  const std::int64_t column = target - first;
  return target == kIgnoreTarget || column < 0 || column >= columns ? -1 : column;
}

template <class T>
void exponentials(const Tensor& logits_TV, std::int64_t valid, const Tensor& targets_T,
                  std::int64_t first, const Tensor& max_T, const Tensor& sum_T,
                  const Tensor& chosen_T, Stream& stream) {
  const auto targets = targets_T.host<std::int32_t>();
  const auto max = max_T.host<T>(), sum = sum_T.host<T>(), chosen = chosen_T.host<T>();
  const std::int64_t columns = logits_TV.size(1);
  for_each_row<T>(logits_TV, stream, [&](T* row, std::size_t at) {
    const std::int64_t column = column_of(targets[at], first, valid);
    chosen[at] = column < 0 ? T{0} : row[column] - max[at];
    sum[at] = static_cast<T>(row_exponentials(row, valid, max[at]));
    std::fill(row + valid, row + columns, T{0});
  });
}

template <class T>
void gradient(const Tensor& exponentials_TV, const Tensor& targets_T, std::int64_t first,
              const Tensor& sum_T, double grad_scale, Stream& stream) {
  const auto targets = targets_T.host<std::int32_t>();
  const auto sum = sum_T.host<T>();
  const std::int64_t columns = exponentials_TV.size(1);
  for_each_row<T>(exponentials_TV, stream, [&](T* row, std::size_t at) {
    if (targets[at] == kIgnoreTarget) {
      std::fill_n(row, columns, T{0});
      return;
    }
    const double factor = grad_scale / static_cast<double>(sum[at]);
    const std::int64_t column = column_of(targets[at], first, columns);
    const double at_target =
        column < 0 ? 0.0 : static_cast<double>(row[column]) * factor - grad_scale;
    scale_row(row, columns, static_cast<T>(factor));
    if (column >= 0) row[column] = static_cast<T>(at_target);
  });
}

template <class T>
void forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
             Stream& stream) {
  const std::int64_t vocabulary = logits_TV.size(1);
  for_rows<T>(logits_TV, targets_T, loss_T, stream, [=](const T* row, std::int32_t target) {
    return target == kIgnoreTarget ? 0.0 : row_loss(row, vocabulary, target);
  });
}

template <class T>
void forward_backward(const Tensor& logits_TV, const Tensor& targets_T, double grad_scale,
                      const Tensor& loss_T, Stream& stream) {
  const std::int64_t vocabulary = logits_TV.size(1);
  for_rows<T>(logits_TV, targets_T, loss_T, stream, [=](T* row, std::int32_t target) {
    if (target != kIgnoreTarget) return row_gradient(row, vocabulary, target, grad_scale);
    std::fill_n(row, vocabulary, T{0});
    return 0.0;
  });
}

}  // namespace

void cross_entropy_forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                           Stream& stream) {
  visit_float(logits_TV.dtype(),
              [&](auto zero) { forward<decltype(zero)>(logits_TV, targets_T, loss_T, stream); });
}

void cross_entropy_forward_backward(const Tensor& logits_TV, const Tensor& targets_T,
                                    double grad_scale, const Tensor& loss_T, Stream& stream) {
  visit_float(logits_TV.dtype(), [&](auto zero) {
    forward_backward<decltype(zero)>(logits_TV, targets_T, grad_scale, loss_T, stream);
  });
}

void row_max(const Tensor& logits_TV, std::int64_t valid, const Tensor& max_T, Stream& stream) {
  visit_float(logits_TV.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto max = max_T.host<T>();
    for_each_row<T>(logits_TV, stream,
                    [&](T* row, std::size_t at) { max[at] = row_max(row, valid); });
  });
}

void row_exponentials(const Tensor& logits_TV, std::int64_t valid, const Tensor& targets_T,
                      std::int64_t first, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& chosen_T, Stream& stream) {
  visit_float(logits_TV.dtype(), [&](auto zero) {
    exponentials<decltype(zero)>(logits_TV, valid, targets_T, first, max_T, sum_T, chosen_T,
                                 stream);
  });
}

void softmax_gradient(const Tensor& exponentials_TV, const Tensor& targets_T, std::int64_t first,
                      const Tensor& sum_T, double grad_scale, Stream& stream) {
  visit_float(exponentials_TV.dtype(), [&](auto zero) {
    gradient<decltype(zero)>(exponentials_TV, targets_T, first, sum_T, grad_scale, stream);
  });
}

void row_loss(const Tensor& sum_T, const Tensor& chosen_T, const Tensor& targets_T,
              const Tensor& loss_T, Stream&) {
  const auto losses = loss_T.host<double>();
  const auto targets = targets_T.host<std::int32_t>();
  visit_float(sum_T.dtype(), [&](auto zero) {
    const auto sums = sum_T.host<decltype(zero)>(), chosen = chosen_T.host<decltype(zero)>();
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const bool counts = targets[i] != kIgnoreTarget;
      losses[i] =
          counts ? std::log(static_cast<double>(sums[i])) - static_cast<double>(chosen[i]) : 0.0;
    }
  });
}

}  // namespace heddle::ops::cpu
#endif
