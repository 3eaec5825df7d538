#pragma once

#include <memory>

#include "nn/fusible.h"
#include "nn/low_rank.h"

namespace heddle {

/// y = x W^T + b with W stored [out, in], or y = x W + b with W stored [in, out] (GPT-2's files);
/// outputs may have low-rank adapters.
class Linear final : public Product {
 public:
  enum class Storage { out_in, in_out };

  /// `bias` may be null. Of ranks whose outputs are summed, only one has `adds_bias`; the bias
  /// itself and its gradient are the same on all.
  Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
         Storage storage = Storage::out_in, bool adds_bias = true);
  void adapt(std::unique_ptr<LowRank> adapters) { adapters_ = std::move(adapters); }

  Tensor multiply(Tensor x_TI, const Tensor& addend_TO, Saved& saved, Ctx& ctx) override;
  void prepare_given(const Tensor&, Saved&, Ctx&) override {}
  Tensor backward_input_given(const Tensor& dy_TO, const MakeInput& input, Saved& saved,
                              Ctx& ctx) override;
  Tensor backward_given(Tensor dy_TO, const MakeInput& input, Saved&, Ctx& ctx) override;
  void backward_weight_given(const Tensor& x_TI, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool needs_input() const override {
    return adapters_ || weight_->trains || (bias_ && bias_->trains);
  }

  // B and W for an owner that keeps the input and the output's gradient itself.
  Tensor input_grad(const Tensor& dy_TO, Ctx& ctx) const;
  /// B and W are apart: leaves in `saved` what add_weight_grads needs of values. In B.
  void keep_inner(const Tensor& x_TI, const Tensor& dy_TO, Saved& saved, Ctx& ctx) const;
  void add_weight_grads_kept(const Tensor& x_TI, const Tensor& dy_TO, Saved& saved, Ctx& ctx);
  /// W where values are here.
  void add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx);
  const Tensor& weight() const { return weight_->value; }
  std::int64_t out() const { return weight_->shape[storage_ == Storage::out_in ? 0 : 1]; }
  /// y = x W^T and nothing else.
  bool is_plain() const { return !bias_ && !adapters_ && storage_ == Storage::out_in; }

 private:
  void add_own_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx);

  enum Slot { kInnerValue = kFirstOwnSlot, kInnerGrad };
  std::shared_ptr<Parameter> weight_, bias_;
  Storage storage_;
  bool adds_bias_;
  std::unique_ptr<LowRank> adapters_;
};

}  // namespace heddle
