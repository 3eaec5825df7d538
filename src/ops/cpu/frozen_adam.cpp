#include "ops/frozen_adam.h"

#include <cmath>
#include <limits>

#include "ops/backend.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/frozen_adam.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

/// x = keep m + take x
void blend(const Tensor& x, const Tensor& m, double keep, double take, Stream& stream) {
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T kept = static_cast<T>(keep), taken = static_cast<T>(take);
    T *px = x.data<T>(), *pm = m.data<T>();
    parallel_pieces<2>(stream, {&x, &m}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T* const values = px + at[0];
      const T* const moments = pm + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto added = hn::Mul(hn::LoadU(d, values + i), hn::Set(d, taken));
        hn::StoreU(hn::MulAdd(hn::LoadU(d, moments + i), hn::Set(d, kept), added), d, values + i);
      });
    });
  });
}

void frozen_adam(const Tensor& p, const Tensor& made, const Tensor& m, const Tensor& v,
                 const FrozenAdamArgs& args, Stream& stream) {
  visit_float(p.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T rate = static_cast<T>(args.lr * args.first),
            root = static_cast<T>(std::sqrt(args.second)), eps = static_cast<T>(args.eps),
            keep = static_cast<T>(1.0 - args.lr * args.weight_decay);
    // An element whose v is at most this only decays.
    const T none = static_cast<T>(args.masks ? 0.0 : -1.0);
    T *pp = p.data<T>(), *px = made.data<T>(), *pm = m.data<T>(), *pv = v.data<T>();
    parallel_pieces<4>(stream, {&p, &made, &m, &v}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T *const params = pp + at[0], *const moment1 = pm + at[2];
      const T *const moments = px + at[1], *const moment2 = pv + at[3];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto first = hn::LoadU(d, moments + i), second = hn::LoadU(d, moment2 + i);
        const auto below = hn::MulAdd(hn::Sqrt(second), hn::Set(d, root), hn::Set(d, eps));
        const auto change = hn::Div(hn::Mul(first, hn::Set(d, rate)), below);
        const auto kept = hn::Mul(hn::LoadU(d, params + i), hn::Set(d, keep));
        hn::StoreU(first, d, moment1 + i);
        hn::StoreU(hn::Sub(kept, hn::IfThenElseZero(hn::Gt(second, hn::Set(d, none)), change)), d,
                   params + i);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(blend);
HWY_EXPORT(frozen_adam);

namespace {

double factor_or_one(const Tensor& factor) {
  return factor.defined() ? factor.host<float>()[0] : 1.0;
}

}  // namespace

void blend(const Tensor& x, const Tensor& m, const BlendArgs& args, Stream& stream) {
  const double clip = factor_or_one(args.clip);
  if (!std::isfinite(clip) || !std::isfinite(factor_or_one(args.guard))) {
    return fill(x, std::numeric_limits<double>::quiet_NaN(), stream);
  }
  if (!m.defined()) return scale(x, args.take * clip, stream);
  HEDDLE_DISPATCH(blend, x.dtype())(x, m, args.keep, args.take * clip, stream);
}

void frozen_adam(const Tensor& p, const Tensor& made, const Tensor& m, const Tensor& v,
                 const FrozenAdamArgs& args, Stream& stream) {
  if (!std::isfinite(factor_or_one(args.guard))) return;
  if (!p.defined()) return copy(made, m, stream);
  HEDDLE_DISPATCH(frozen_adam, p.dtype())(p, made, m, v, args, stream);
  if (args.p_low.defined()) cast(p, args.p_low, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
