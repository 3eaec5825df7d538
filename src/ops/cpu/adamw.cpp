#include "ops/adamw.h"

#include <cmath>

#include "ops/adamw_factors.h"
#include "ops/backend.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

void adamw(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWArgs& args, double clip, Stream& stream) {
  visit_float(p.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const AdamWFactors<T> f(args, clip);
    T *pp = p.data<T>(), *pg = g.data<T>(), *pm = m.data<T>(), *pv = v.data<T>();
    parallel_pieces<4>(stream, {&p, &g, &m, &v}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T *const params = pp + at[0], *const moment1 = pm + at[2], *const moment2 = pv + at[3];
      const T* const grads = pg + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto grad = hn::Mul(hn::LoadU(d, grads + i), hn::Set(d, f.grad));
        const auto first = hn::MulAdd(hn::LoadU(d, moment1 + i), hn::Set(d, f.beta1),
                                      hn::Mul(grad, hn::Set(d, f.rest1)));
        const auto second = hn::MulAdd(hn::LoadU(d, moment2 + i), hn::Set(d, f.beta2),
                                       hn::Mul(hn::Mul(grad, grad), hn::Set(d, f.rest2)));
        const auto below = hn::MulAdd(hn::Sqrt(second), hn::Set(d, f.root), hn::Set(d, f.eps));
        const auto change = hn::Div(hn::Mul(first, hn::Set(d, f.rate)), below);
        const auto kept = hn::Mul(hn::LoadU(d, params + i), hn::Set(d, f.keep));
        hn::StoreU(first, d, moment1 + i);
        hn::StoreU(second, d, moment2 + i);
        hn::StoreU(hn::Sub(kept, change), d, params + i);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(adamw);

void adamw(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWArgs& args, Stream& stream) {
  const double clip = args.clip.defined() ? args.clip.host<float>()[0] : 1.0;
  if (!std::isfinite(clip)) return;
  HEDDLE_DISPATCH(adamw, p.dtype())(p, g, m, v, args, clip, stream);
  if (args.p_low.defined()) cast(p, args.p_low, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
