#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/sgd.h"
#include "optim/adamw.h"
#include "optim/newton_schulz.h"

namespace heddle {
namespace {

double rate_scale(MuonConfig::Scale scale, const Shape& matrix) {
  const auto a = static_cast<double>(matrix[0]), b = static_cast<double>(matrix[1]);
  return scale == MuonConfig::Scale::original ? std::sqrt(std::max(1.0, a / b))
                                              : 0.2 * std::sqrt(std::max(a, b));
}

}  // namespace

std::vector<OptimizerState> Muon::states(const MuonConfig&) {
  using Of = OptimizerState::Of;
  return {
      {"momentum_buffer", Of::inner_matrices}, {"exp_avg", Of::others}, {"exp_avg_sq", Of::others}};
}

Muon::Muon(const MuonConfig& config, const ParamStore& store)
    : config_(config), store_(store), matrices_(store) {}

Tensor Muon::direction(const Tensor& matrix, Stream& stream) const {
  // Products in bf16 where layers make theirs in it; a CPU has no such products.
  const bool is_gpu = stream.device().kind == Device::Kind::cuda;
  const Tensor found =
      newton_schulz(matrix, config_.newton_schulz_steps, is_gpu ? store_.dtype() : matrix.dtype(),
                    store_.memory(), stream);
  Tensor scaled = found;
  if (found.dtype() != matrix.dtype()) {
    scaled = matrix;
    ops::cast(found, scaled, stream);
  }
  ops::scale(scaled, rate_scale(config_.scale, matrix.shape()), stream);
  return scaled;
}

void Muon::step(const StepArgs& args, Stream& stream) {
  for (const OptShard& shard : store_.shards()) {
    if (!shard.is_inner) {
      adamw_step(config_.rest, shard, 1, args, stream);
      continue;
    }
    if (args.rests(shard.unit)) continue;
    ops::running_mean(
        shard.grad, shard.states[0],
        {.momentum = config_.momentum, .nesterov = config_.nesterov, .clip = args.clip}, stream);
  }
  matrices_.replace_grads([&](const Tensor& matrix) { return direction(matrix, stream); }, stream);
  for (const OptShard& shard : store_.shards()) {
    if (!shard.is_inner || args.rests(shard.unit)) continue;
    // Without momentum, decay that is added to the gradient is decoupled decay.
    ops::sgd(shard.value, shard.grad, {},
             {.lr = args.rate_of(shard.unit).lr * config_.lr_ratio,
              .weight_decay = config_.rest.weight_decay,
              .guard = args.clip,
              .p_low = shard.low},
             stream);
  }
}

}  // namespace heddle
