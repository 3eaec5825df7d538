#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
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

  /// Of a unit that was made anew in the middle of a run, or is left out of it.
  struct OfUnit {
    double lr_factor = 1.0;
    std::int64_t steps_before = 0;  ///< that its states have not seen
    bool rests = false;             ///< values and states stay as they are
  };
  std::vector<OfUnit> units = {};  ///< by number in the store; empty: none differs

  struct Rate {
    double lr;
    std::int64_t step;
  };
  Rate rate_of(int unit) const {
    if (units.empty()) return {lr, step};
    const OfUnit& own = units[static_cast<std::size_t>(unit)];
    return {lr * own.lr_factor, step - own.steps_before};
  }
  bool rests(int unit) const {
    return !units.empty() && units[static_cast<std::size_t>(unit)].rests;
  }
};

/// Updates the parameters of one store, in which its states lie
/// (docs/design/020-optimizer-states.md).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// What ranks exchange for the update beside gradients, where they may be lost meanwhile: values
  /// and states stay as they are but for what the store keeps twice (ParamStore::keep_earlier). All
  /// ranks call it at the same time, before step(), with the same arguments.
  virtual void exchange(const StepArgs& /*args*/, Stream& /*stream*/) {}
  /// From the gradients, whose values it may use up. All ranks call it at the same time. A clip
  /// that is not finite leaves values and states as they were.
  virtual void step(const StepArgs& args, Stream& stream) = 0;

  /// Changes how the step of this number (StepArgs::step) goes, where it is not as usual.
  virtual void adapt(StepPolicy& /*policy*/, std::int64_t /*step*/) const {}
  /// Adds to the totals (f64) that adapt() asked for beside the usual ones, before they are summed
  /// over ranks; and looks at the sums, when a step is done that was not skipped.
  virtual void add_totals(const Tensor& /*own*/, std::int64_t /*step*/, Stream& /*stream*/) const {}
  virtual void look_at_totals(std::span<const double> /*own*/, std::int64_t /*step*/) {}
  /// What it keeps beside the states: saved, and given back when a run goes on.
  using Numbers = std::map<std::string, double>;
  virtual Numbers numbers() const { return {}; }
  virtual void restore(const Numbers& /*numbers*/) {}
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

/// AdamW until the second moment is frozen; then ranks exchange signs of the momentum
/// (onebit_adam.h).
struct OnebitAdamConfig {
  AdamWConfig adamw = {};
  /// The last step of AdamW; absent: when the second moment has settled.
  std::optional<std::int64_t> freeze_step = {};
  /// Settled: in 1 / (1 - beta2) steps its sum changes by no more than to this fraction, or from
  /// it; looked at behind so many steps, those of the learning rate's warm-up.
  double settled = 0.96;
  std::int64_t least_steps = 0;
  bool masks = true;  ///< elements without a gradient until then are left to the decay
};

using OptimizerConfig = std::variant<AdamWConfig, SgdConfig, MuonConfig, OnebitAdamConfig>;

/// Declares its states in the store, which outlives it. The only way to an optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, ParamStore& store);
/// What such an optimizer declares.
std::vector<OptimizerState> optimizer_states(const OptimizerConfig& config);
/// Whether it works on whole matrices, so that the ranks of a stage need to be joined
/// (MeshShape::joins_stages).
bool needs_whole_matrices(const OptimizerConfig& config);
/// The same optimizer with its warm-up behind it, for an optimizer whose steps are then others.
std::optional<OptimizerConfig> behind_warm_up(const OptimizerConfig& config);

}  // namespace heddle
