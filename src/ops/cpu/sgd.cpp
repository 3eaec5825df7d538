#include "ops/sgd.h"

#include <cmath>

#include "ops/backend.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sgd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

void descend(const Tensor& p, const Tensor& g, const SgdArgs& args, double clip, Stream& stream) {
  visit_float(p.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T factor = static_cast<T>(clip), decay = static_cast<T>(args.weight_decay),
            rate = static_cast<T>(args.lr);
    T *pp = p.data<T>(), *pg = g.data<T>();
    parallel_pieces<2>(stream, {&p, &g}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T* const params = pp + at[0];
      const T* const grads = pg + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto param = hn::LoadU(d, params + i);
        const auto grad = hn::MulAdd(param, hn::Set(d, decay),
                                     hn::Mul(hn::LoadU(d, grads + i), hn::Set(d, factor)));
        hn::StoreU(hn::NegMulAdd(grad, hn::Set(d, rate), param), d, params + i);
      });
    });
  });
}

void descend_with_momentum(const Tensor& p, const Tensor& g, const Tensor& m, const SgdArgs& args,
                           double clip, Stream& stream) {
  visit_float(p.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T factor = static_cast<T>(clip), decay = static_cast<T>(args.weight_decay),
            rate = static_cast<T>(args.lr);
    const T keep = static_cast<T>(args.is_first ? 0.0 : args.momentum),
            take = static_cast<T>(args.is_first ? 1.0 : 1.0 - args.dampening);
    const T ahead = static_cast<T>(args.nesterov ? args.momentum : 1.0),
            now = static_cast<T>(args.nesterov ? 1.0 : 0.0);
    T *pp = p.data<T>(), *pg = g.data<T>(), *pm = m.data<T>();
    parallel_pieces<3>(stream, {&p, &g, &m}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T *const params = pp + at[0], *const moments = pm + at[2];
      const T* const grads = pg + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto param = hn::LoadU(d, params + i);
        const auto grad = hn::MulAdd(param, hn::Set(d, decay),
                                     hn::Mul(hn::LoadU(d, grads + i), hn::Set(d, factor)));
        const auto moment = hn::MulAdd(hn::LoadU(d, moments + i), hn::Set(d, keep),
                                       hn::Mul(grad, hn::Set(d, take)));
        const auto change = hn::MulAdd(moment, hn::Set(d, ahead), hn::Mul(grad, hn::Set(d, now)));
        hn::StoreU(moment, d, moments + i);
        hn::StoreU(hn::NegMulAdd(change, hn::Set(d, rate), param), d, params + i);
      });
    });
  });
}

void running_mean(const Tensor& g, const Tensor& m, const RunningMeanArgs& args, double clip,
                  Stream& stream) {
  visit_float(g.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T keep = static_cast<T>(args.momentum),
            take = static_cast<T>((1.0 - args.momentum) * clip);
    const T ahead = static_cast<T>(args.nesterov ? args.momentum : 1.0),
            now = static_cast<T>(args.nesterov ? (1.0 - args.momentum) * clip : 0.0);
    T *pg = g.data<T>(), *pm = m.data<T>();
    parallel_pieces<2>(stream, {&g, &m}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T *const grads = pg + at[0], *const moments = pm + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto grad = hn::LoadU(d, grads + i);
        const auto moment = hn::MulAdd(hn::LoadU(d, moments + i), hn::Set(d, keep),
                                       hn::Mul(grad, hn::Set(d, take)));
        hn::StoreU(moment, d, moments + i);
        hn::StoreU(hn::MulAdd(moment, hn::Set(d, ahead), hn::Mul(grad, hn::Set(d, now))), d,
                   grads + i);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(descend);
HWY_EXPORT(descend_with_momentum);
HWY_EXPORT(running_mean);

namespace {

double value_of(const Tensor& factor) { return factor.defined() ? factor.host<float>()[0] : 1.0; }

}  // namespace

void sgd(const Tensor& p, const Tensor& g, const Tensor& m, const SgdArgs& args, Stream& stream) {
  const double clip = value_of(args.clip);
  if (!std::isfinite(clip) || !std::isfinite(value_of(args.guard))) return;
  if (m.defined()) {
    HEDDLE_DISPATCH(descend_with_momentum, p.dtype())(p, g, m, args, clip, stream);
  } else {
    HEDDLE_DISPATCH(descend, p.dtype())(p, g, args, clip, stream);
  }
  if (args.p_low.defined()) cast(p, args.p_low, stream);
}

void running_mean(const Tensor& g, const Tensor& m, const RunningMeanArgs& args, Stream& stream) {
  const double clip = value_of(args.clip);
  if (!std::isfinite(clip)) return;
  HEDDLE_DISPATCH(running_mean, g.dtype())(g, m, args, clip, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
