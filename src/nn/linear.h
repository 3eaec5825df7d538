#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// y = x W^T + b with W stored [out, in], or y = x W + b with W stored [in, out] (GPT-2's files).
class Linear : public Layer {
 public:
  enum class Storage { out_in, in_out };

  /// `bias` may be null. Of ranks whose outputs are summed, only one has `adds_bias`; the bias
  /// itself and its gradient are the same on all.
  Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
         Storage storage = Storage::out_in, bool adds_bias = true);

  Tensor forward(const Tensor& x_TI, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TO, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor forward_added(const Tensor& x_TI, const Tensor& addend_TO, Saved& saved,
                       Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool accept_rebuilt_input() override;
  Tensor forward_through(const Tensor& x_TI, Layer& next, Saved& saved, Saved& next_saved,
                         Ctx& ctx) override;
  Rebuilt backward_through(const Tensor& dy_TO, Layer& before, Saved& saved, Saved& before_saved,
                           Ctx& ctx) override;

 private:
  /// y = x W^T and nothing else.
  bool is_plain() const { return !bias_ && storage_ == Storage::out_in; }
  std::int64_t in() const { return weight_->shape[storage_ == Storage::out_in ? 1 : 0]; }
  std::int64_t out() const { return weight_->shape[storage_ == Storage::out_in ? 0 : 1]; }

  enum Slot { kInput, kOutputGrad };
  std::shared_ptr<Parameter> weight_, bias_;
  Storage storage_;
  bool adds_bias_;
  bool input_is_rebuilt_ = false;
};

}  // namespace heddle
