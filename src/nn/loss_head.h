#pragma once

#include <memory>

#include "comm/communicator.h"
#include "nn/embedding.h"
#include "nn/layer.h"

namespace heddle {

/// The last layer: output projection fused with cross-entropy, in chunks of tokens, so that the
/// logits of the whole micro-batch are never held. In training, forward makes the chunk's logits,
/// its loss, and at once its gradients (dx is kept, dW is added): computing them later would need
/// either all logits or a second product. So B hands over the kept dx, and W has nothing left to
/// do.
///
/// Several ranks can share the work, each with its tokens and the whole vocabulary, or each with
/// its part of the vocabulary and all tokens.
class LossHead : public Layer {
 public:
  /// The part of the vocabulary that is here: rows of the weight, of which the first `valid` exist.
  struct VocabularyPart {
    Communicator* others = nullptr;  ///< the holders of the vocabulary; null: all of it is here
    std::int64_t first = 0, valid = 0, whole = 0;  ///< valid 0, and no others: all rows exist
  };
  struct Options {
    std::int64_t chunk_tokens = 1024;
    TokenShare tokens = {};
    VocabularyPart vocabulary = {};
    double cap = 0.0;  ///< logits become cap * tanh(logit / cap); 0: they stay
  };

  /// `weight` is [V here, D], possibly the token embedding itself.
  LossHead(std::shared_ptr<Parameter> weight, const Options& options);

  /// Returns the loss of every token, [T here] f64; 0 where the target is ignored or
  /// where another holder of the vocabulary counts it.
  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  /// dy is not used: the gradient is of ctx.loss_scale times the sum of the losses.
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

  bool adds_gradients_in_forward() const override { return true; }

  /// Logits [T, V] (f32, or f64 for f64) of the given rows, for generation and for comparison with
  /// references; of the whole vocabulary on every holder.
  Tensor logits(const Tensor& x_TD, Ctx& ctx) const;

 private:
  /// Rows of the weight that exist; the rest is zero, and so are its logits and their gradient.
  std::int64_t valid() const {
    const VocabularyPart& part = options_.vocabulary;
    return part.others == nullptr && part.valid == 0 ? weight_->shape[0] : part.valid;
  }
  /// The logits, capped where there is a cap.
  void project(const Tensor& x_TD, const Tensor& logits_TV, Ctx& ctx) const;
  /// The loss of a chunk, and where all is kept its gradient in place of the logits.
  void chunk_loss(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                  Ctx& ctx) const;
  void shared_chunk_loss(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                         Ctx& ctx) const;

  enum Slot { kInputGrad };
  std::shared_ptr<Parameter> weight_;
  Options options_;
};

}  // namespace heddle
