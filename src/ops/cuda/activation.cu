#include "ops/activation.h"
#include "ops/cuda/map.h"

namespace heddle::ops::cuda {
namespace {

struct SwigluForward {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] * sigmoid_fast(in[0]) * in[1];
  }
};

/// O = 3: also forward's result.
template <int O>
struct SwigluBackward {
  __device__ void operator()(const float (&in)[3], float (&out)[O]) const {
    const float dy = in[0], gate = in[1], up = in[2], s = sigmoid_fast(gate);
    out[0] = dy * up * s * (1.0F + gate * (1.0F - s));
    out[1] = dy * gate * s;
    if constexpr (O == 3) out[2] = gate * s * up;
  }
};

/// x * P(x), P the normal distribution. Beside its density, P is a polynomial of
/// 1 / (1 + c |x|) (Abramowitz and Stegun 7.1.26), good to 1e-7: erff would take more instructions
/// than a bf16 element has time for.
struct ExactGelu {
  static constexpr float kDensity = 0.39894228040143268F;    // 1 / sqrt(2 pi)
  static constexpr float kHalfLog2E = 0.72134752044448170F;  // log2(e) / 2
  static constexpr float kRate = 0.23164189F;                // 0.3275911 / sqrt(2)
  struct At {
    float normal, bell;  ///< P(x) and exp(-x^2 / 2)
  };
  __device__ static At at(float x) {
    const float t = __fdividef(1.0F, fmaf(kRate, fabsf(x), 1.0F));
    const float bell = exp2_fast(-kHalfLog2E * x * x);
    float p = fmaf(0.5307027145F, t, -0.7265760135F);  // halves of the book's coefficients
    p = fmaf(p, t, 0.7107068705F);
    p = fmaf(p, t, -0.142248368F);
    p = fmaf(p, t, 0.127414796F);
    const float above = p * t * bell;  // the part beyond |x|
    return {x < 0.0F ? above : 1.0F - above, bell};
  }
  __device__ static float value(float x) { return x * at(x).normal; }
  __device__ static float slope(float x) {
    const At here = at(x);
    return here.normal + x * kDensity * here.bell;
  }
};

/// x * sigmoid(2 u) = x / 2 * (1 + tanh u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGelu {
  static constexpr float kTwoRoot = 1.59576912160573071F, kCube = 0.044715F;
  __device__ static float value(float x) {
    return x * sigmoid_fast(x * (kTwoRoot + kTwoRoot * kCube * x * x));
  }
  __device__ static float slope(float x) {
    // Beyond 30 the gate is flat; the bound keeps 0 * infinity away. NaN stays.
    const float near = x > 30.0F ? 30.0F : x < -30.0F ? -30.0F : x;
    const float s = sigmoid_fast(near * (kTwoRoot + kTwoRoot * kCube * near * near));
    return s + near * (kTwoRoot + 3.0F * kTwoRoot * kCube * near * near) * s * (1.0F - s);
  }
};

template <class Kind>
struct GeluForward {
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    out[0] = Kind::value(in[0]);
  }
};

/// O = 2: also forward's result.
template <class Kind, int O>
struct GeluBackward {
  __device__ void operator()(const float (&in)[2], float (&out)[O]) const {
    out[0] = in[0] * Kind::slope(in[1]);
    if constexpr (O == 2) out[1] = Kind::value(in[1]);
  }
};

template <class Kind>
struct GegluForward {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = Kind::value(in[0]) * in[1];
  }
};

/// O = 3: also forward's result.
template <class Kind, int O>
struct GegluBackward {
  __device__ void operator()(const float (&in)[3], float (&out)[O]) const {
    const float value = Kind::value(in[1]);
    out[0] = in[0] * in[2] * Kind::slope(in[1]);
    out[1] = in[0] * value;
    if constexpr (O == 3) out[2] = value * in[2];
  }
};

template <class Kind>
void geglu_backward_as(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                       const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                       Stream& stream) {
  if (y_TF.defined()) {
    map<3, 3>(stream, {&dy_TF, &gate_TF, &up_TF, &dgate_TF, &dup_TF, &y_TF},
              GegluBackward<Kind, 3>{});
  } else {
    map<3, 2>(stream, {&dy_TF, &gate_TF, &up_TF, &dgate_TF, &dup_TF}, GegluBackward<Kind, 2>{});
  }
}

struct SoftCap {
  float cap;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    out[0] = cap * tanhf(in[0] / cap);
  }
};

struct SoftCapBackward {
  float cap;
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    const float tanh = in[0] / cap;
    out[0] = in[1] * (1.0F - tanh * tanh);
  }
};

template <class Kind>
void gelu_backward_as(const Tensor& dy_TF, const Tensor& x_TF, const Tensor& dx_TF,
                      const Tensor& y_TF, Stream& stream) {
  if (y_TF.defined()) {
    map<2, 2>(stream, {&dy_TF, &x_TF, &dx_TF, &y_TF}, GeluBackward<Kind, 2>{});
  } else {
    map<2, 1>(stream, {&dy_TF, &x_TF, &dx_TF}, GeluBackward<Kind, 1>{});
  }
}

}  // namespace

void swiglu_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF,
                    Stream& stream) {
  map<2, 1>(stream, {&gate_TF, &up_TF, &y_TF}, SwigluForward{});
}

void swiglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                     const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                     Stream& stream) {
  if (y_TF.defined()) {
    map<3, 3>(stream, {&dy_TF, &gate_TF, &up_TF, &dgate_TF, &dup_TF, &y_TF}, SwigluBackward<3>{});
  } else {
    map<3, 2>(stream, {&dy_TF, &gate_TF, &up_TF, &dgate_TF, &dup_TF}, SwigluBackward<2>{});
  }
}

void gelu_forward(const Tensor& x_TF, Gelu kind, const Tensor& y_TF, Stream& stream) {
  if (kind == Gelu::exact) {
    map<1, 1>(stream, {&x_TF, &y_TF}, GeluForward<ExactGelu>{});
  } else {
    map<1, 1>(stream, {&x_TF, &y_TF}, GeluForward<TanhGelu>{});
  }
}

void gelu_backward(const Tensor& dy_TF, const Tensor& x_TF, Gelu kind, const Tensor& dx_TF,
                   const Tensor& y_TF, Stream& stream) {
  if (kind == Gelu::exact) {
    gelu_backward_as<ExactGelu>(dy_TF, x_TF, dx_TF, y_TF, stream);
  } else {
    gelu_backward_as<TanhGelu>(dy_TF, x_TF, dx_TF, y_TF, stream);
  }
}

void geglu_forward(const Tensor& gate_TF, const Tensor& up_TF, Gelu kind, const Tensor& y_TF,
                   Stream& stream) {
  if (kind == Gelu::exact) {
    map<2, 1>(stream, {&gate_TF, &up_TF, &y_TF}, GegluForward<ExactGelu>{});
  } else {
    map<2, 1>(stream, {&gate_TF, &up_TF, &y_TF}, GegluForward<TanhGelu>{});
  }
}

void geglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF, Gelu kind,
                    const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                    Stream& stream) {
  if (kind == Gelu::exact) {
    geglu_backward_as<ExactGelu>(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, y_TF, stream);
  } else {
    geglu_backward_as<TanhGelu>(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, y_TF, stream);
  }
}

void soft_cap(const Tensor& x_TF, double cap, Stream& stream) {
  map<1, 1>(stream, {&x_TF, &x_TF}, SoftCap{static_cast<float>(cap)});
}

void soft_cap_backward(const Tensor& y_TF, double cap, const Tensor& dx_TF, Stream& stream) {
  map<2, 1>(stream, {&y_TF, &dx_TF, &dx_TF}, SoftCapBackward{static_cast<float>(cap)});
}

}  // namespace heddle::ops::cuda
