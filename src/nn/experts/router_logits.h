#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// From tokens to a logit for every expert: what routers have parameters for.
class RouterLogits {
 public:
  virtual ~RouterLogits() = default;
  virtual std::int64_t experts() const = 0;
  virtual std::int64_t width() const = 0;  ///< of tokens
  /// Of what its parameters are called, for what is drawn at random.
  virtual const std::string& name() const = 0;

  /// In the dtype of statistics. Keeps what backward needs beside x where anything is kept: it is
  /// dear, since a second forward does not come here.
  virtual Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) = 0;
  /// The gradient of x, with the addend where there is one; leaves in `saved` what W needs.
  virtual Tensor backward_input(const Tensor& dlogits_TE, const Tensor& addend_TD, Saved& saved,
                                Ctx& ctx) = 0;
  virtual void backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) = 0;
  virtual void visit(const ParamVisitor& visitor) = 0;
  /// Of what it keeps all is dear.
  virtual Cost cost(const CostShape& shape) const = 0;
};

/// A row for every expert: logits are products with them.
class LinearLogits final : public RouterLogits {
 public:
  /// weight [experts, width].
  explicit LinearLogits(std::shared_ptr<Parameter> weight);

  std::int64_t experts() const override { return weight_->shape[0]; }
  std::int64_t width() const override { return weight_->shape[1]; }
  const std::string& name() const override { return weight_->parts.front().name; }
  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dlogits_TE, const Tensor& addend_TD, Saved& saved,
                        Ctx& ctx) override;
  void backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override { visitor(*weight_); }
  Cost cost(const CostShape& shape) const override;

 private:
  enum Slot { kLogitsGrad };
  const std::shared_ptr<Parameter> weight_;
};

/// Cosines of a projection of the token with a row for every expert, times a temperature (X-MoE,
/// Tutel; ops/cosine.h).
class CosineLogits final : public RouterLogits {
 public:
  struct Parameters {
    std::shared_ptr<Parameter> projection, bias;  ///< [inner, width], [inner]
    std::shared_ptr<Parameter> rows;              ///< [experts, inner]
    std::shared_ptr<Parameter> warmth;            ///< [1]
  };
  explicit CosineLogits(Parameters parameters);

  std::int64_t experts() const override { return own_.rows->shape[0]; }
  std::int64_t width() const override { return own_.projection->shape[1]; }
  const std::string& name() const override { return own_.rows->parts.front().name; }
  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dlogits_TE, const Tensor& addend_TD, Saved& saved,
                        Ctx& ctx) override;
  void backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  std::int64_t inner() const { return own_.rows->shape[1]; }

  enum Slot { kProjected, kLogitsGrad, kProjectedGrad, kRows, kWarmth };
  const Parameters own_;
};

}  // namespace heddle
