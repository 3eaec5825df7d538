#pragma once

#include <vector>

#include "nn/fusible.h"

namespace heddle {

/// Layers one after the other. A tensor is added by the last one in forward and by the first one in
/// backward, on the way where that layer can.
class Sequential final : public AddingLayer {
 public:
  explicit Sequential(Layers layers);

  Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  /// forward of one layer.
  Tensor step(int index, Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx);

  int count() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int index) const { return *layers_[static_cast<std::size_t>(index)]; }
  AddingLayer* adding(int index) const { return adding_[static_cast<std::size_t>(index)]; }

  Layers layers_;
  std::vector<AddingLayer*> adding_;  // by layer; null where it is none
};

}  // namespace heddle
