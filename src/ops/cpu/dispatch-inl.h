// Which element types are compiled for which SIMD target; included once per target by the files
// that dispatch.
//
// Training computes in f32. f64 is there for gradient checks and references, where speed does not
// matter: it is compiled for the baseline only, which every processor has. That saves a quarter of
// the time these files take to compile.
#if defined(HEDDLE_OPS_CPU_DISPATCH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_DISPATCH_INL_H
#undef HEDDLE_OPS_CPU_DISPATCH_INL_H
#else
#define HEDDLE_OPS_CPU_DISPATCH_INL_H
#endif

#include <hwy/highway.h>

#include "base/check.h"
#include "tensor/dtype.h"

#ifndef HEDDLE_DISPATCH
/// The function that HWY_EXPORT named, compiled for the best target that has elements of `dtype`.
#define HEDDLE_DISPATCH(function, dtype) \
  ((dtype) == DType::f64 ? HWY_STATIC_DISPATCH(function) : HWY_DYNAMIC_DISPATCH(function))
#endif

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

inline constexpr bool kHasDouble = HWY_TARGET == HWY_STATIC_TARGET;

/// Calls body(T{}) with T = float or double, as `dtype` says; the caller has dispatched by it.
template <class Body>
void visit_float(DType dtype, const Body& body) {
  if constexpr (kHasDouble) {
    if (dtype == DType::f64) return body(double{});
  }
  HEDDLE_CHECK(dtype == DType::f32, "an operation on {}", name_of(dtype));
  body(float{});
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
