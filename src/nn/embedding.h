#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// The first layer: token embedding, plus a learned position embedding where the model has one. Its
/// input is the micro-batch's ids; backward returns no tensor.
class Embedding : public Layer {
 public:
  /// `positions` ([max positions, D]) may be null.
  Embedding(std::shared_ptr<Parameter> tokens, std::shared_ptr<Parameter> positions);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape&) const override { return {}; }

 private:
  enum Slot { kOutputGrad };
  std::shared_ptr<Parameter> tokens_, positions_;
};

}  // namespace heddle
