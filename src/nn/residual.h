#pragma once

#include <vector>

#include "nn/sequential.h"

namespace heddle {

/// y = x + branch(x), or x + the sum of several branches of the same x (GPT-NeoX's parallel
/// residual). The sums are made by the ends of the branches, on the way where they can
/// (AddingLayer).
class Residual final : public Layer {
 public:
  /// Every branch starts with a layer that keeps x and ends with one that does not keep its output,
  /// which the sum may be made in.
  explicit Residual(std::vector<Layers> branches);
  explicit Residual(Layers branch);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  void prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  int count() const { return static_cast<int>(branches_.size()); }
  Sequential& branch(int index) { return branches_[static_cast<std::size_t>(index)]; }

  std::vector<Sequential> branches_;
};

}  // namespace heddle
