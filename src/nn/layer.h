#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "nn/context.h"
#include "nn/parameter.h"
#include "nn/saved.h"

namespace heddle {

/// A collective that a layer makes, or a message.
struct LayerCall {
  const Communicator* over = nullptr;
  CommOp op = CommOp::all_reduce;
  std::int64_t bytes = 0;    ///< of the whole tensor
  bool is_dear = false;      ///< of F: what it brings is kept, so a second forward does not make it
  std::int64_t payload = 0;  ///< that it stands for, where these are a codec's bytes; 0: the same
};

/// A product of activations [rows, in] with weights [in, out]; its two gradients are products too.
/// Of experts, a product for each of so many groups of rows / groups rows.
struct WeightProduct {
  double rows = 0, in = 0, out = 0;
  double groups = 1;
  bool trains = true;  ///< false: the gradient of the weights is not made
};

/// What a layer costs for one micro-batch: floating-point operations of F, B and W, the bytes it
/// keeps between F and its backward, and the collectives it makes in F and in B. What a planner
/// knows of a layer is this.
struct Cost {
  double forward_flops = 0;
  double backward_input_flops = 0;
  double backward_weight_flops = 0;
  std::size_t saved_bytes = 0;
  /// Of saved_bytes, the layer's own input and output: where a neighbour keeps one of them too, it
  /// is one tensor.
  std::size_t kept_input_bytes = 0, kept_output_bytes = 0;
  /// Of saved_bytes, what is kept although the rest is computed again (Keep::dear).
  std::size_t dear_bytes = 0;
  /// The most that it takes for messages while it runs.
  std::size_t working_bytes = 0;
  /// Beside what is kept, the most that rows of experts take while it runs.
  std::size_t row_bytes = 0;
  std::vector<LayerCall> calls_f = {}, calls_b = {};
  /// Beside what is kept, the most that backward makes again and holds for a moment.
  std::size_t moment_bytes = 0;
  // What the operations consist of:
  std::vector<WeightProduct> products = {};
  std::vector<WeightProduct> output_products = {};   ///< of them, what prepare_backward spares
  std::vector<WeightProduct> rebuilt_products = {};  ///< of them, what backward makes once more
  double attention_flops = 0;                        ///< forward; dear, so never computed again
  double touched_bytes_f = 0, touched_bytes_b = 0;   ///< read and written beside products

  /// The sum of both; the other's calls come behind these in F and before them in B.
  Cost& operator+=(const Cost& other);
};

/// The sizes a cost depends on.
struct CostShape {
  std::int64_t sequences = 1, seq_len = 1;
  DType dtype = DType::f32;
  int residual_ranks = 1;  ///< that divide the tokens between blocks
  /// Where ranks share the sequences: what this one does in attention, and how many tokens it has.
  std::shared_ptr<const RankContext> context = nullptr;
  std::int64_t share_tokens = 0;

  std::int64_t tokens() const { return context ? share_tokens : sequences * seq_len; }
  /// Of an activation [tokens, width].
  std::size_t bytes(std::int64_t width) const {
    return static_cast<std::size_t>(tokens() * width) * size_of(dtype);
  }
  /// Of this rank's tokens between blocks.
  double stream_bytes(std::int64_t width) const {
    return static_cast<double>(bytes(width)) / residual_ranks;
  }
};

/// A part of a model with an explicit forward (F) and a backward in two halves: the gradient of the
/// input (B), which another stage may wait for, and the gradient of the weights (W), which nobody
/// waits for. Layers see local tensors and no mesh axis. Activations are [tokens, width],
/// contiguous.
///
/// Rules that let tensors be shared without copies: a layer never writes to dy, nor later to what
/// it returned. It may write to x in forward only where that saves a copy and x is a fresh output
/// that the layer before does not keep (PrepareQkv rotates q and k inside a projection's
/// output), and over what it saved itself in backward (Activation).
///
/// Recomputation (nn/recompute.h) runs forward twice, first with Keep::dear and before backward
/// with Keep::all. A layer whose result is dear to compute again (attention) keeps it from the
/// first and returns it when it finds it in `saved` in the second.
///
/// Layers know nothing of their neighbours. Where neighbours do better together, the list that they
/// stand in is rewritten when the model is built (nn/fuse.h).
class Layer {
 public:
  virtual ~Layer() = default;

  virtual Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) = 0;
  /// forward with Keep::all whose output nobody wants (recomputation): leaves in `saved` what
  /// forward would, and spares what a layer would compute for its output alone.
  virtual void prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) { forward(x, saved, ctx); }
  /// Returns dx; may leave things in `saved` for W. Call once per forward.
  virtual Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) = 0;
  /// Adds to the parameters' gradients; leaves `saved` empty. Parameters' values may be gone.
  virtual void backward_weight(Saved& saved, Ctx& ctx) = 0;
  /// B and W at once. Equal to one after the other; layers made of layers interleave, which holds
  /// less.
  virtual Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx);

  virtual void visit(const ParamVisitor& visitor) = 0;
  virtual Cost cost(const CostShape& shape) const = 0;

  /// True for a layer whose parameters' gradients are complete after forward (LossHead).
  virtual bool adds_gradients_in_forward() const { return false; }
};

using Layers = std::vector<std::unique_ptr<Layer>>;

/// The gradient of a parameter, for operations that only add and make those of several at once: of
/// a frozen one, room that nobody reads.
Tensor addable_grad(Parameter& parameter, DType dtype, Ctx& ctx);

}  // namespace heddle
