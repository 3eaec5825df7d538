#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/context.h"
#include "nn/parameter.h"
#include "nn/saved.h"

namespace heddle {

/// What a layer costs for one micro-batch: floating-point operations of F, B and W, and the bytes
/// it keeps between F and its backward. A tensor that the layer before keeps too is counted by that
/// one.
struct Cost {
  double forward_flops = 0;
  double backward_input_flops = 0;
  double backward_weight_flops = 0;
  std::size_t saved_bytes = 0;

  Cost& operator+=(const Cost& other);
};

/// The sizes a cost depends on.
struct CostShape {
  std::int64_t sequences = 1, seq_len = 1;
  DType dtype = DType::f32;
  std::int64_t tokens() const { return sequences * seq_len; }
};

/// A part of a model with an explicit forward (F) and a backward in two halves: the gradient of the
/// input (B), which another stage may wait for, and the gradient of the weights (W), which nobody
/// waits for. Layers see local tensors and no mesh axis. Activations are [tokens, width],
/// contiguous.
///
/// Rules that let tensors be shared without copies: a layer never writes to dy, nor later to what
/// it returned. It may write to x in forward only where that saves a copy and x is a fresh output
/// that the layer before does not keep (AttentionCore rotates q and k inside a projection's
/// output), and over what it saved itself in backward (Activation).
class Layer {
 public:
  virtual ~Layer() = default;

  virtual Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) = 0;
  /// Returns dx; may leave things in `saved` for W. Call once per forward.
  virtual Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) = 0;
  /// Adds to the parameters' gradients; leaves `saved` empty.
  virtual void backward_weight(Saved& saved, Ctx& ctx) = 0;
  /// B and W at once. Equal to one after the other; layers made of layers interleave, which holds
  /// less.
  virtual Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx);

  /// forward(x) + addend, and backward(dy) + addend: the sums of a residual connection, for layers
  /// that can make them on the way. The addend is not written to; the default adds afterwards.
  virtual Tensor forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx);
  virtual Tensor backward_added(const Tensor& dy, const Tensor& addend, Saved& saved, Ctx& ctx);

  virtual void visit(const ParamVisitor& visitor) = 0;
  virtual Cost cost(const CostShape& shape) const = 0;

  /// True for a layer whose parameters' gradients are complete after forward (LossHead).
  virtual bool adds_gradients_in_forward() const { return false; }

  /// True for a layer whose output follows cheaply from what it saves (a norm, an activation): the
  /// layer behind it then need not keep its input.
  virtual bool can_rebuild_output() const { return false; }
  virtual Tensor rebuild_output(const Saved& saved, Ctx& ctx) const;
  /// True when the layer's backward can rebuild its output on the way, at no cost.
  virtual bool rebuilds_in_backward() const { return false; }
  struct Rebuilt {
    Tensor dx, output;
  };
  virtual Rebuilt backward_rebuilding(const Tensor& dy, Saved& saved, Ctx& ctx);

  // Neighbours that work in one pass where the device can: a linear layer, and an activation that
  // makes its input, or the gradient of its output, by itself, as a product.

  /// This layer's forward, and then that of the next one. The default calls both.
  virtual Tensor forward_through(const Tensor& x, Layer& next, Saved& saved, Saved& next_saved,
                                 Ctx& ctx);
  /// This layer's backward_input, and then backward_rebuilding of the one before.
  virtual Rebuilt backward_through(const Tensor& dy, Layer& before, Saved& saved,
                                   Saved& before_saved, Ctx& ctx);
  /// Whether forward_product and backward_product exist: forward of x w^T, and backward_rebuilding
  /// for the gradient dy w.
  virtual bool takes_products() const { return false; }
  virtual Tensor forward_product(const Tensor& x, const Tensor& w, Saved& saved, Ctx& ctx);
  virtual Rebuilt backward_product(const Tensor& dy, const Tensor& w, Saved& saved, Ctx& ctx);

  /// Promises to hand the input over by Saved slot kRebuiltInput before backward, so that forward
  /// need not keep it. Returns false when the layer does not take it that way.
  virtual bool accept_rebuilt_input() { return false; }
  static constexpr int kRebuiltInput = 100;
};

}  // namespace heddle
