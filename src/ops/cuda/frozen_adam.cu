#include "ops/cuda/vectors.h"
#include "ops/frozen_adam.h"

namespace heddle::ops::cuda {
namespace {

const float* factor_data(const Tensor& factor) {
  return factor.defined() ? device_data<float>(factor) : nullptr;
}

__device__ float factor_or_one(const float* factor) { return factor != nullptr ? *factor : 1.0F; }

__global__ void __launch_bounds__(256)
    blend_kernel(float* x, const float* m, float keep, float take, const float* clip,
                 const float* guard, std::int64_t count) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float by = factor_or_one(clip);
  const bool is_finite = isfinite(by) && isfinite(factor_or_one(guard));
  const float added = x[at] * (take * by);
  x[at] = !is_finite ? nanf("") : m != nullptr ? keep * m[at] + added : added;
}

struct FrozenOperands {
  float* p;
  const float* made;
  float* m;
  const float* v;
  Bf16* low;           // may be null
  const float* guard;  // may be null
  std::int64_t count;
};

__global__ void __launch_bounds__(256) frozen_adam_kernel(FrozenOperands o, float rate, float root,
                                                          float eps, float keep, bool masks) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= o.count || !isfinite(factor_or_one(o.guard))) return;
  const float first = o.made[at];
  o.m[at] = first;
  if (o.p == nullptr) return;
  const float second = o.v[at];
  const float change = masks && second == 0.0F ? 0.0F : first * rate / (sqrtf(second) * root + eps);
  const float p = o.p[at] * keep - change;
  o.p[at] = p;
  if (o.low != nullptr) o.low[at] = Bf16(p);
}

}  // namespace

void blend(const Tensor& x, const Tensor& m, const BlendArgs& args, Stream& stream) {
  if (x.count() == 0) return;
  blend_kernel<<<blocks_for(x.count(), 256), 256, 0, state_of(stream).stream>>>(
      device_data<float>(x), factor_data(m), static_cast<float>(args.keep),
      static_cast<float>(args.take), factor_data(args.clip), factor_data(args.guard), x.count());
  HEDDLE_CUDA(cudaGetLastError());
}

void frozen_adam(const Tensor& p, const Tensor& made, const Tensor& m, const Tensor& v,
                 const FrozenAdamArgs& args, Stream& stream) {
  if (made.count() == 0) return;
  const FrozenOperands operands{
      .p = p.defined() ? device_data<float>(p) : nullptr,
      .made = device_data<float>(made),
      .m = device_data<float>(m),
      .v = v.defined() ? device_data<float>(v) : nullptr,
      .low = args.p_low.defined() ? device_data<Bf16>(args.p_low) : nullptr,
      .guard = factor_data(args.guard),
      .count = made.count()};
  frozen_adam_kernel<<<blocks_for(made.count(), 256), 256, 0, state_of(stream).stream>>>(
      operands, static_cast<float>(args.lr * args.first),
      static_cast<float>(std::sqrt(args.second)), static_cast<float>(args.eps),
      static_cast<float>(1.0 - args.lr * args.weight_decay), args.masks);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
