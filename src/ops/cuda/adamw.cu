#include "ops/adamw_factors.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

using Factors = AdamWFactors<float>;

struct Operands {
  float* p;
  const float* g;
  float *m, *v;
  Bf16* low;          // may be null
  const float* clip;  // may be null
  std::int64_t count;
};

/// W elements per thread.
template <int W>
__global__ void __launch_bounds__(256) adamw_kernel(Operands o, Factors f) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  if (at >= o.count) return;
  using Pack = cuda::Pack<float, W>;
  auto p = Pack::load(o.p + at), m = Pack::load(o.m + at), v = Pack::load(o.v + at);
  const auto g = Pack::load(o.g + at);
  const float clip = o.clip != nullptr ? *o.clip : 1.0F;
  if (!isfinite(clip)) return;
  cuda::Pack<Bf16, W> low;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float grad = g.get(i) * (f.grad * clip);
    const float first = m.get(i) * f.beta1 + grad * f.rest1;
    const float second = v.get(i) * f.beta2 + grad * grad * f.rest2;
    const float change = first * f.rate / (sqrtf(second) * f.root + f.eps);
    m.set(i, first);
    v.set(i, second);
    p.set(i, p.get(i) * f.keep - change);
    low.set(i, p.get(i));
  }
  p.store(o.p + at);
  m.store(o.m + at);
  v.store(o.v + at);
  if (o.low != nullptr) low.store(o.low + at);
}

}  // namespace

void adamw(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWArgs& args, Stream& stream) {
  bool wide = p.count() % 4 == 0;
  for (const Tensor* t : {&p, &g, &m, &v, &args.p_low}) {
    if (t->defined()) wide = wide && is_aligned(*t);
  }
  if (p.count() == 0) return;
  const Operands operands{.p = device_data<float>(p),
                          .g = device_data<float>(g),
                          .m = device_data<float>(m),
                          .v = device_data<float>(v),
                          .low = args.p_low.defined() ? device_data<Bf16>(args.p_low) : nullptr,
                          .clip = args.clip.defined() ? device_data<float>(args.clip) : nullptr,
                          .count = p.count()};
  const auto kernel = wide ? adamw_kernel<4> : adamw_kernel<1>;
  kernel<<<blocks_for(p.count(), wide ? 1024 : 256), 256, 0, state_of(stream).stream>>>(
      operands, Factors(args));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
