#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "parallel/param_store.h"

namespace heddle {

/// What changes from step to step.
struct StepArgs {
  double lr = 0.0;
  Tensor clip = {};       ///< f32, one element: multiplies gradients first; absent: 1
  std::int64_t step = 1;  ///< counted from 1
};

/// Updates the parameters of one store, in which its states lie
/// (docs/design/020-optimizer-states.md).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// From the gradients, whose values it may use up. All ranks call it at the same time. A clip
  /// that is not finite leaves values and states as they were.
  virtual void step(const StepArgs& args, Stream& stream) = 0;
};

/// Loshchilov and Hutter's: decay is decoupled from the gradient.
struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
};

/// torch.optim.SGD's: decay is added to the gradient.
struct SgdConfig {
  double momentum = 0.0, dampening = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
};

/// torch.optim.Muon's for inner matrices, AdamW for all else.
struct MuonConfig {
  /// What the learning rate of an A x B matrix is multiplied by:
  ///   original        sqrt(max(1, A / B))
  ///   match_rms_adamw 0.2 sqrt(max(A, B)): updates are about as large as AdamW's
  enum class Scale : std::uint8_t { original, match_rms_adamw };
  double lr_ratio = 1.0;  ///< the matrices' learning rate over that of the rest
  double momentum = 0.95;
  bool nesterov = true;
  Scale scale = Scale::match_rms_adamw;
  int newton_schulz_steps = 5;
  AdamWConfig rest = {};  ///< the decay of the matrices too
};

using OptimizerConfig = std::variant<AdamWConfig, SgdConfig, MuonConfig>;

/// Declares its states in the store, which outlives it. The only way to an optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, ParamStore& store);
/// What such an optimizer declares.
std::vector<OptimizerState> optimizer_states(const OptimizerConfig& config);
/// Whether it works on whole matrices, so that the ranks of a stage need to be joined
/// (MeshShape::joins_stages).
bool needs_whole_matrices(const OptimizerConfig& config);

}  // namespace heddle
