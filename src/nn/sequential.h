#pragma once

#include <memory>
#include <vector>

#include "nn/layer.h"

namespace heddle {

/// Layers one after the other. Where a layer can rebuild its output from what it saved and the next
/// one accepts that, the tensor between them is not kept but made again just before it is needed,
/// or by the backward of the layer that it came from.
class Sequential : public Layer {
 public:
  explicit Sequential(std::vector<std::unique_ptr<Layer>> layers);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  Tensor forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  Tensor backward_added(const Tensor& dy, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  /// Backward of all layers but the first `stop`.
  Tensor backward_down_to(int stop, const Tensor& dy, Saved& saved, Ctx& ctx);
  /// Forward of the first `stop` layers.
  Tensor forward_up_to(int stop, const Tensor& x, Saved& saved, Ctx& ctx);
  /// Whether the input of a layer is made again by the backward of the one below.
  bool is_rebuilt_below(int index) const;
  /// B of such a layer and of the one below; leaves the input for W.
  Tensor backward_pair(int index, const Tensor& dy, Saved& saved, Ctx& ctx);
  void hand_over_rebuilt_input(int index, Saved& saved, Ctx& ctx) const;
  int count() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int index) const { return *layers_[static_cast<std::size_t>(index)]; }

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<bool> input_is_rebuilt_;
};

}  // namespace heddle
