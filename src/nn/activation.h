#pragma once

#include "nn/layer.h"
#include "ops/activation.h"

namespace heddle {

/// A nonlinearity from rows of one width to rows of another, without parameters: what is common to
/// all of them. Backward writes the gradient over the saved input, which nothing needs afterwards.
class Activation : public Layer {
 public:
  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) final;
  Tensor backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) final;
  void backward_weight(Saved&, Ctx&) final {}
  void visit(const ParamVisitor&) final {}
  Cost cost(const CostShape& shape) const final;

  // For an owner that keeps x itself.
  Tensor output(const Tensor& x, Ctx& ctx) const;
  /// Writes the gradient over x and returns the output once more, from the same pass.
  Tensor output_and_gradient(const Tensor& dy_TF, const Tensor& x, Ctx& ctx) const;

 protected:
  Activation(std::int64_t in_width, std::int64_t out_width)
      : in_width_(in_width), out_width_(out_width) {}

 private:
  /// y = f(x).
  virtual void apply(const Tensor& x, const Tensor& y_TF, Stream& stream) const = 0;
  /// Replaces x by the gradient of f at x for the gradient dy of its result; y, where given,
  /// becomes f(x).
  virtual void differentiate(const Tensor& dy_TF, const Tensor& x, const Tensor& y_TF,
                             Stream& stream) const = 0;

  enum Slot { kInput };
  std::int64_t in_width_, out_width_;
};

/// y_TF = silu(gate) * up for x_T(2F) = [gate | up].
class SwiGlu final : public Activation {
 public:
  explicit SwiGlu(std::int64_t width) : Activation(2 * width, width) {}

 private:
  void apply(const Tensor& x, const Tensor& y_TF, Stream& stream) const override;
  void differentiate(const Tensor& dy_TF, const Tensor& x, const Tensor& y_TF,
                     Stream& stream) const override;
};

/// y_TF = gelu(gate) * up for x_T(2F) = [gate | up].
class GeGlu final : public Activation {
 public:
  GeGlu(std::int64_t width, ops::Gelu kind) : Activation(2 * width, width), kind_(kind) {}

 private:
  void apply(const Tensor& x, const Tensor& y_TF, Stream& stream) const override;
  void differentiate(const Tensor& dy_TF, const Tensor& x, const Tensor& y_TF,
                     Stream& stream) const override;

  ops::Gelu kind_;
};

/// y = gelu(x).
class GeluLayer final : public Activation {
 public:
  GeluLayer(std::int64_t width, ops::Gelu kind) : Activation(width, width), kind_(kind) {}

 private:
  void apply(const Tensor& x_TF, const Tensor& y_TF, Stream& stream) const override;
  void differentiate(const Tensor& dy_TF, const Tensor& x_TF, const Tensor& y_TF,
                     Stream& stream) const override;

  ops::Gelu kind_;
};

}  // namespace heddle
