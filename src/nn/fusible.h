#pragma once

#include <functional>

#include "nn/layer.h"

namespace heddle {

// What the owner of a layer may ask of it beyond what every layer does: owners are residual
// connections and fused layers (nn/fused_layers.h).

/// A layer that can add a tensor to its result on the way, which saves a pass over memory: a
/// product does so in forward, a norm in backward.
class AddingLayer : public Layer {
 public:
  /// forward(x) + addend, and backward(dy) + addend. The addend is not written to; where it is
  /// absent, nothing is added. x and dy are let go as soon as they have been used, which holds less
  /// where the caller has given up its own.
  virtual Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) = 0;
  virtual Tensor backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) = 0;

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) final {
    return forward_added(x, {}, saved, ctx);
  }
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) final {
    return backward_added(dy, {}, saved, ctx);
  }
};

/// y += addend, where there is one.
void add(const Tensor& addend, const Tensor& y, Ctx& ctx);

/// A product of the input with weights. Only W needs the input again, so an owner that can make it
/// again need not let the product keep it: it calls the functions below in place of those of a
/// layer.
class Product : public AddingLayer {
 public:
  /// forward_added without keeping x.
  virtual Tensor multiply(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) = 0;
  /// Makes the product's input of rows of x, each row by itself.
  using InputOf = std::function<Tensor(const Tensor& x)>;
  /// multiply(input_of(x), addend). What comes out may be other rows than went in, where rows stay
  /// with their experts (Ctx::rows); the addend is x then.
  virtual Tensor multiply_of(const Tensor& x, const InputOf& input_of, const Tensor& addend,
                             Saved& saved, Ctx& ctx) {
    return multiply(input_of(x), addend, saved, ctx);
  }
  /// multiply for the sake of what it keeps: computes nothing beyond.
  virtual void prepare_given(const Tensor& x, Saved& saved, Ctx& ctx) = 0;
  /// Makes forward's input.
  using MakeInput = std::function<Tensor()>;
  /// B; `input` is called at most once.
  virtual Tensor backward_input_given(const Tensor& dy, const MakeInput& input, Saved& saved,
                                      Ctx& ctx) = 0;
  /// W, given forward's input.
  virtual void backward_weight_given(const Tensor& x, Saved& saved, Ctx& ctx) = 0;
  /// B and W at once; `input` is called once, when it is needed.
  virtual Tensor backward_given(Tensor dy, const MakeInput& input, Saved& saved, Ctx& ctx) = 0;

  Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) final;
  void prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) final;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) final;
  void backward_weight(Saved& saved, Ctx& ctx) final;
  Tensor backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) final;

  /// Whether W uses the input; without, it is not kept. Known once the model is built.
  virtual bool needs_input() const { return true; }
  /// The width of the input.
  std::int64_t in() const { return in_; }

 protected:
  explicit Product(std::int64_t in) : in_(in) {}

  enum Slot { kInput, kOutputGrad, kFirstOwnSlot };

 private:
  std::int64_t in_;
};

}  // namespace heddle
