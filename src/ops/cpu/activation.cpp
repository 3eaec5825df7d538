#include "ops/activation.h"

#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/probability-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

// What follows is made of kinds of functions: value(d, x), and slope(d, x), its derivative.

/// x * sigmoid(x).
struct Silu {
  template <class D, class V>
  static HWY_INLINE V value(D d, V x) {
    return hn::Mul(x, sigmoid(d, x).p);
  }
  template <class D, class V>
  static HWY_INLINE V slope(D d, V x) {
    const auto s = sigmoid(d, x);
    return hn::Mul(s.p, hn::MulAdd(x, s.q, hn::Set(d, 1)));
  }
};

/// x * P(x), P the normal distribution.
struct ExactGelu {
  template <class D, class V>
  static HWY_INLINE V value(D d, V x) {
    return hn::Mul(x, normal(d, x).p);
  }
  template <class D, class V>
  static HWY_INLINE V slope(D d, V x) {
    using T = hn::TFromD<D>;
    const auto n = normal(d, x);
    const V density = hn::Mul(n.bell, hn::Set(d, static_cast<T>(0.39894228040143267794)));
    return hn::MulAdd(x, density, n.p);
  }
};

/// x * sigmoid(2 u) = x / 2 * (1 + tanh u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGelu {
  static constexpr double kTwoRoot = 1.59576912160573071176;  // 2 sqrt(2 / pi)
  static constexpr double kCube = 0.044715;

  template <class D, class V>
  static HWY_INLINE Probability<V> gate(D d, V x) {
    using T = hn::TFromD<D>;
    const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, static_cast<T>(kTwoRoot * kCube)),
                               hn::Set(d, static_cast<T>(kTwoRoot)));
    return sigmoid(d, hn::Mul(x, cubic));
  }
  template <class D, class V>
  static HWY_INLINE V value(D d, V x) {
    return hn::Mul(x, gate(d, x).p);
  }
  template <class D, class V>
  static HWY_INLINE V slope(D d, V x) {
    using T = hn::TFromD<D>;
    // Beyond 30 the gate is flat in either precision; the bound keeps 0 * infinity away.
    const V near = hn::Clamp(x, hn::Set(d, -30), hn::Set(d, 30));
    const auto s = gate(d, near);
    const V steep =
        hn::MulAdd(hn::Mul(near, near), hn::Set(d, static_cast<T>(3 * kTwoRoot * kCube)),
                   hn::Set(d, static_cast<T>(kTwoRoot)));
    return hn::MulAdd(hn::Mul(near, steep), hn::Mul(s.p, s.q), s.p);
  }
};

template <class Kind>
void gelu_forward_as(const Tensor& x_TF, const Tensor& y_TF, Stream& stream) {
  visit_float(y_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *xs = x_TF.data<T>(), *ys = y_TF.data<T>();
    parallel_pieces<2>(stream, {&x_TF, &y_TF}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      const T* const x = xs + at[0];
      T* const y = ys + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        hn::StoreU(Kind::value(d, hn::LoadU(d, x + i)), d, y + i);
      });
    });
  });
}

template <class Kind>
void gelu_backward_as(const Tensor& dy_TF, const Tensor& x_TF, const Tensor& dx_TF,
                      Stream& stream) {
  visit_float(dx_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *dys = dy_TF.data<T>(), *xs = x_TF.data<T>(), *dxs = dx_TF.data<T>();
    parallel_pieces<3>(stream, {&dy_TF, &x_TF, &dx_TF},
                       [&](const auto& at, std::int64_t n) HWY_ATTR {
                         const T *dy = dys + at[0], *x = xs + at[1];
                         T* const dx = dxs + at[2];
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           const auto slope = Kind::slope(d, hn::LoadU(d, x + i));
                           hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), slope), d, dx + i);
                         });
                       });
  });
}

/// y = value(gate) * up.
template <class Kind>
void gated_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF, Stream& stream) {
  visit_float(y_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *gates = gate_TF.data<T>(), *ups = up_TF.data<T>(), *ys = y_TF.data<T>();
    parallel_pieces<3>(stream, {&gate_TF, &up_TF, &y_TF},
                       [&](const auto& at, std::int64_t n) HWY_ATTR {
                         const T *gate = gates + at[0], *up = ups + at[1];
                         T* const y = ys + at[2];
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           const auto value = Kind::value(d, hn::LoadU(d, gate + i));
                           hn::StoreU(hn::Mul(value, hn::LoadU(d, up + i)), d, y + i);
                         });
                       });
  });
}

template <class Kind>
void gated_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                    const Tensor& dgate_TF, const Tensor& dup_TF, Stream& stream) {
  visit_float(dy_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *dys = dy_TF.data<T>(), *gates = gate_TF.data<T>(), *ups = up_TF.data<T>();
    T *dgates = dgate_TF.data<T>(), *dups = dup_TF.data<T>();
    parallel_pieces<5>(stream, {&dy_TF, &gate_TF, &up_TF, &dgate_TF, &dup_TF},
                       [&](const auto& at, std::int64_t n) HWY_ATTR {
                         const T *dy = dys + at[0], *gate = gates + at[1], *up = ups + at[2];
                         T *dgate = dgates + at[3], *dup = dups + at[4];
                         for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                           const auto g = hn::LoadU(d, gate + i), out = hn::LoadU(d, dy + i);
                           const auto to_gate = hn::Mul(out, hn::LoadU(d, up + i));
                           hn::StoreU(hn::Mul(to_gate, Kind::slope(d, g)), d, dgate + i);
                           hn::StoreU(hn::Mul(out, Kind::value(d, g)), d, dup + i);
                         });
                       });
  });
}

void swiglu_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF,
                    Stream& stream) {
  gated_forward<Silu>(gate_TF, up_TF, y_TF, stream);
}

void swiglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                     const Tensor& dgate_TF, const Tensor& dup_TF, Stream& stream) {
  gated_backward<Silu>(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, stream);
}

void geglu_forward(const Tensor& gate_TF, const Tensor& up_TF, Gelu kind, const Tensor& y_TF,
                   Stream& stream) {
  if (kind == Gelu::exact) {
    gated_forward<ExactGelu>(gate_TF, up_TF, y_TF, stream);
  } else {
    gated_forward<TanhGelu>(gate_TF, up_TF, y_TF, stream);
  }
}

void geglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF, Gelu kind,
                    const Tensor& dgate_TF, const Tensor& dup_TF, Stream& stream) {
  if (kind == Gelu::exact) {
    gated_backward<ExactGelu>(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, stream);
  } else {
    gated_backward<TanhGelu>(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, stream);
  }
}

void soft_cap(const Tensor& x_TF, double cap, Stream& stream) {
  visit_float(x_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T* const xs = x_TF.data<T>();
    const auto most = static_cast<T>(cap);
    parallel_pieces<1>(stream, {&x_TF}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      T* const x = xs + at[0];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        hn::StoreU(capped(d, hn::LoadU(d, x + i), most), d, x + i);
      });
    });
  });
}

void soft_cap_backward(const Tensor& y_TF, double cap, const Tensor& dx_TF, Stream& stream) {
  visit_float(dx_TF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T *ys = y_TF.data<T>(), *dxs = dx_TF.data<T>();
    const auto most = static_cast<T>(cap);
    parallel_pieces<2>(stream, {&y_TF, &dx_TF}, [&](const auto& at, std::int64_t n) HWY_ATTR {
      const T* const y = ys + at[0];
      T* const dx = dxs + at[1];
      for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto slope = capped_slope(d, hn::LoadU(d, y + i), most);
        hn::StoreU(hn::Mul(hn::LoadU(d, dx + i), slope), d, dx + i);
      });
    });
  });
}

void gelu_forward(const Tensor& x_TF, Gelu kind, const Tensor& y_TF, Stream& stream) {
  if (kind == Gelu::exact) {
    gelu_forward_as<ExactGelu>(x_TF, y_TF, stream);
  } else {
    gelu_forward_as<TanhGelu>(x_TF, y_TF, stream);
  }
}

void gelu_backward(const Tensor& dy_TF, const Tensor& x_TF, Gelu kind, const Tensor& dx_TF,
                   Stream& stream) {
  if (kind == Gelu::exact) {
    gelu_backward_as<ExactGelu>(dy_TF, x_TF, dx_TF, stream);
  } else {
    gelu_backward_as<TanhGelu>(dy_TF, x_TF, dx_TF, stream);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(swiglu_forward);
HWY_EXPORT(swiglu_backward);
HWY_EXPORT(gelu_forward);
HWY_EXPORT(gelu_backward);
HWY_EXPORT(geglu_forward);
HWY_EXPORT(geglu_backward);
HWY_EXPORT(soft_cap);
HWY_EXPORT(soft_cap_backward);

void swiglu_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF,
                    Stream& stream) {
  HEDDLE_DISPATCH(swiglu_forward, y_TF.dtype())(gate_TF, up_TF, y_TF, stream);
}

void swiglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                     const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                     Stream& stream) {
  if (y_TF.defined()) swiglu_forward(gate_TF, up_TF, y_TF, stream);
  HEDDLE_DISPATCH(swiglu_backward, dy_TF.dtype())(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, stream);
}

void gelu_forward(const Tensor& x_TF, Gelu kind, const Tensor& y_TF, Stream& stream) {
  HEDDLE_DISPATCH(gelu_forward, y_TF.dtype())(x_TF, kind, y_TF, stream);
}

void gelu_backward(const Tensor& dy_TF, const Tensor& x_TF, Gelu kind, const Tensor& dx_TF,
                   const Tensor& y_TF, Stream& stream) {
  if (y_TF.defined()) cpu::gelu_forward(x_TF, kind, y_TF, stream);
  HEDDLE_DISPATCH(gelu_backward, dx_TF.dtype())(dy_TF, x_TF, kind, dx_TF, stream);
}

void geglu_forward(const Tensor& gate_TF, const Tensor& up_TF, Gelu kind, const Tensor& y_TF,
                   Stream& stream) {
  HEDDLE_DISPATCH(geglu_forward, y_TF.dtype())(gate_TF, up_TF, kind, y_TF, stream);
}

void geglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF, Gelu kind,
                    const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                    Stream& stream) {
  if (y_TF.defined()) cpu::geglu_forward(gate_TF, up_TF, kind, y_TF, stream);
  HEDDLE_DISPATCH(geglu_backward, dy_TF.dtype())
  (dy_TF, gate_TF, up_TF, kind, dgate_TF, dup_TF, stream);
}

void soft_cap(const Tensor& x_TF, double cap, Stream& stream) {
  HEDDLE_DISPATCH(soft_cap, x_TF.dtype())(x_TF, cap, stream);
}

void soft_cap_backward(const Tensor& y_TF, double cap, const Tensor& dx_TF, Stream& stream) {
  HEDDLE_DISPATCH(soft_cap_backward, dx_TF.dtype())(y_TF, cap, dx_TF, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
