#pragma once

#include <memory>

#include "nn/fusible.h"

namespace heddle {

/// y = x W^T + b with W stored [out, in], or y = x W + b with W stored [in, out] (GPT-2's files).
class Linear final : public Product {
 public:
  enum class Storage { out_in, in_out };

  /// `bias` may be null. Of ranks whose outputs are summed, only one has `adds_bias`; the bias
  /// itself and its gradient are the same on all.
  Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
         Storage storage = Storage::out_in, bool adds_bias = true);

  Tensor multiply(Tensor x_TI, const Tensor& addend_TO, Saved& saved, Ctx& ctx) override;
  void prepare_given(const Tensor&, Saved&, Ctx&) override {}
  Tensor backward_input_given(const Tensor& dy_TO, const MakeInput&, Saved& saved,
                              Ctx& ctx) override;
  Tensor backward_given(Tensor dy_TO, const MakeInput& input, Saved&, Ctx& ctx) override;
  void backward_weight_given(const Tensor& x_TI, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

  // B and W for an owner that keeps the input and the output's gradient itself.
  Tensor input_grad(const Tensor& dy_TO, Ctx& ctx) const;
  void add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx);
  const Tensor& weight() const { return weight_->value; }
  std::int64_t out() const { return weight_->shape[storage_ == Storage::out_in ? 0 : 1]; }
  /// y = x W^T and nothing else.
  bool is_plain() const { return !bias_ && storage_ == Storage::out_in; }

 private:
  std::shared_ptr<Parameter> weight_, bias_;
  Storage storage_;
  bool adds_bias_;
};

}  // namespace heddle
