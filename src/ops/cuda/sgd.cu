#include <initializer_list>

#include "ops/cuda/vectors.h"
#include "ops/sgd.h"

namespace heddle::ops::cuda {
namespace {

/// What the kernels multiply by, worked out in double once.
struct Factors {
  float decay = 0, rate = 0;
  float keep, take;  ///< of the old mean and of the gradient in the new one
  float ahead, now;  ///< of the new mean and of the gradient in the change
};

struct Operands {
  float *p, *g, *m;           // m may be null
  Bf16* low;                  // may be null
  const float *clip, *guard;  // may be null
  std::int64_t count;
};

float* data_or_null(const Tensor& t) { return t.defined() ? device_data<float>(t) : nullptr; }

__device__ float value_of(const float* factor) { return factor != nullptr ? *factor : 1.0F; }

/// W elements per thread.
template <int W, bool kHasMomentum>
__global__ void __launch_bounds__(256) sgd_kernel(Operands o, Factors f) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  if (at >= o.count) return;
  using Pack = cuda::Pack<float, W>;
  const float clip = value_of(o.clip);
  if (!isfinite(clip) || !isfinite(value_of(o.guard))) return;
  auto p = Pack::load(o.p + at);
  const auto g = Pack::load(o.g + at);
  Pack m;
  if constexpr (kHasMomentum) m = Pack::load(o.m + at);
  cuda::Pack<Bf16, W> low;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float grad = g.get(i) * clip + p.get(i) * f.decay;
    float change = grad;
    if constexpr (kHasMomentum) {
      const float mean = m.get(i) * f.keep + grad * f.take;
      m.set(i, mean);
      change = mean * f.ahead + grad * f.now;
    }
    p.set(i, p.get(i) - f.rate * change);
    low.set(i, p.get(i));
  }
  p.store(o.p + at);
  if constexpr (kHasMomentum) m.store(o.m + at);
  if (o.low != nullptr) low.store(o.low + at);
}

template <int W>
__global__ void __launch_bounds__(256) running_mean_kernel(Operands o, Factors f) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  if (at >= o.count) return;
  using Pack = cuda::Pack<float, W>;
  const float clip = value_of(o.clip);
  if (!isfinite(clip)) return;
  auto g = Pack::load(o.g + at), m = Pack::load(o.m + at);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float grad = g.get(i) * clip;
    const float mean = m.get(i) * f.keep + grad * f.take;
    m.set(i, mean);
    g.set(i, mean * f.ahead + grad * f.now);
  }
  m.store(o.m + at);
  g.store(o.g + at);
}

bool are_wide(std::initializer_list<const Tensor*> tensors) {
  bool wide = true;
  for (const Tensor* t : tensors) {
    if (t->defined()) wide = wide && t->count() % 4 == 0 && is_aligned(*t);
  }
  return wide;
}

template <class Kernel>
void launch(Kernel kernel, bool wide, const Operands& operands, const Factors& factors,
            Stream& stream) {
  if (operands.count == 0) return;
  kernel<<<blocks_for(operands.count, wide ? 1024 : 256), 256, 0, state_of(stream).stream>>>(
      operands, factors);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace

void sgd(const Tensor& p, const Tensor& g, const Tensor& m, const SgdArgs& args, Stream& stream) {
  const Operands operands{.p = device_data<float>(p),
                          .g = device_data<float>(g),
                          .m = data_or_null(m),
                          .low = args.p_low.defined() ? device_data<Bf16>(args.p_low) : nullptr,
                          .clip = data_or_null(args.clip),
                          .guard = data_or_null(args.guard),
                          .count = p.count()};
  const Factors factors{.decay = static_cast<float>(args.weight_decay),
                        .rate = static_cast<float>(args.lr),
                        .keep = static_cast<float>(args.is_first ? 0.0 : args.momentum),
                        .take = static_cast<float>(args.is_first ? 1.0 : 1.0 - args.dampening),
                        .ahead = static_cast<float>(args.nesterov ? args.momentum : 1.0),
                        .now = args.nesterov ? 1.0F : 0.0F};
  const bool wide = are_wide({&p, &g, &m, &args.p_low});
  if (m.defined()) {
    launch(wide ? sgd_kernel<4, true> : sgd_kernel<1, true>, wide, operands, factors, stream);
  } else {
    launch(wide ? sgd_kernel<4, false> : sgd_kernel<1, false>, wide, operands, factors, stream);
  }
}

void running_mean(const Tensor& g, const Tensor& m, const RunningMeanArgs& args, Stream& stream) {
  const Operands operands{.p = nullptr,
                          .g = device_data<float>(g),
                          .m = device_data<float>(m),
                          .low = nullptr,
                          .clip = data_or_null(args.clip),
                          .guard = nullptr,
                          .count = g.count()};
  const Factors factors{.keep = static_cast<float>(args.momentum),
                        .take = static_cast<float>(1.0 - args.momentum),
                        .ahead = static_cast<float>(args.nesterov ? args.momentum : 1.0),
                        .now = static_cast<float>(args.nesterov ? 1.0 - args.momentum : 0.0)};
  const bool wide = are_wide({&g, &m});
  launch(wide ? running_mean_kernel<4> : running_mean_kernel<1>, wide, operands, factors, stream);
}

}  // namespace heddle::ops::cuda
