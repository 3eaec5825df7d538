#pragma once

#include <memory>

#include "nn/embedding.h"
#include "nn/layer.h"

namespace heddle {

/// The output projection and loss of a vocabulary whose rows are divided over holders that work on
/// the same tokens at different times: in two passes, between which they tell each other the
/// statistics of their rows (Yeung et al. 2025, algorithms 1 and 2;
/// docs/design/012-vocabulary-over-the-pipeline.md).
class SplitHead {
 public:
  /// Algorithm 2 makes dx early, from what S has: with one more product, T need not be waited for.
  enum class InputGrad { in_t, early };
  struct Rows {
    std::int64_t holders = 1, own = 0;
    std::int64_t each = 0, valid = 0;  ///< rows of every holder; those of this one that exist
  };
  /// `weight` is [rows.each, D].
  SplitHead(std::shared_ptr<Parameter> weight, const Rows& rows, TokenShare tokens,
            InputGrad input_grad);

  /// What S has for the others.
  struct Outgoing {
    Tensor statistics_3T;
    /// With an early dx: the products of the exponentials with the weights, and the targets' rows,
    /// negative. The sum over all holders of product / divisor + targets is dx, up to the scale.
    Tensor product_TD, targets_TD;
  };
  /// S. Needs the weights.
  Outgoing begin(const Tensor& x_TD, Saved& saved, Ctx& ctx);

  /// What follows from the statistics of all holders. The result is allocated before they are
  /// there; `merge` fills it in, on any stream.
  struct Merged {
    Tensor divisor_T, loss_T;  ///< loss is f64, 0 where the target is ignored
  };
  static Merged allocate_merged(const Tensor& statistics_3T, Ctx& ctx);
  /// `rows`: those of this holder. Without the head itself, which may be gone when a communicator's
  /// thread comes to it.
  static void merge(const Rows& rows, const Tensor& statistics_N3T, const Tensor& targets_T,
                    const Merged& merged, Stream& stream);
  /// Turns an early product into this holder's part of dx, up to the scale.
  static void finish_product(const Outgoing& outgoing, const Merged& merged, Stream& stream);

  /// T: adds the gradients of the rows here. With dx in T returns this holder's part of it, and
  /// needs the weights; otherwise returns nothing.
  Tensor finish(const Tensor& divisor_T, Saved& saved, Ctx& ctx);

  /// The targets of this share's tokens.
  Tensor targets(Ctx& ctx) const;
  bool needs_weights_to_finish() const { return input_grad_ == InputGrad::in_t; }
  const Rows& rows() const { return rows_; }

 private:
  std::int64_t first_row() const { return rows_.own * rows_.each; }

  enum Slot { kInput, kExponentials };
  std::shared_ptr<Parameter> weight_;
  const Rows rows_;
  const TokenShare tokens_;
  const InputGrad input_grad_;
};

}  // namespace heddle
