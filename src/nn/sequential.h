#pragma once

#include <memory>
#include <vector>

#include "nn/layer.h"

namespace heddle {

/// Layers one after the other. Where a layer can rebuild its output from what it saved and the next
/// one accepts that, the tensor between them is not kept but made again just before it is needed.
class Sequential : public Layer {
 public:
  explicit Sequential(std::vector<std::unique_ptr<Layer>> layers);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  void hand_over_rebuilt_input(int index, Saved& saved, Ctx& ctx) const;
  int count() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int index) const { return *layers_[static_cast<std::size_t>(index)]; }

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<bool> input_is_rebuilt_;
};

}  // namespace heddle
