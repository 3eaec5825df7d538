#pragma once

#include "optim/optimizer.h"
#include "parallel/whole_matrices.h"

namespace heddle {

/// Momentum lies where the gradients lie, so it is updated in place on every rank; what is made of
/// it needs whole matrices, which are brought together on one rank each (WholeMatrices).
class Muon : public Optimizer {
 public:
  static std::vector<OptimizerState> states(const MuonConfig& config);
  Muon(const MuonConfig& config, const ParamStore& store);
  void step(const StepArgs& args, Stream& stream) override;

 private:
  /// The direction in which a matrix goes, scaled for its learning rate.
  Tensor direction(const Tensor& matrix, Stream& stream) const;

  MuonConfig config_;
  const ParamStore& store_;
  const WholeMatrices matrices_;
};

}  // namespace heddle
