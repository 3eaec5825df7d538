#pragma once

#include <span>

#include "comm/communicator.h"
#include "nn/layer.h"

namespace heddle {

/// RMS norms of rows of which each rank of a group has a stretch, all of the same length (or some
/// ranks the same one): ops::rms_norm_forward and rms_norm_backward_input of the whole rows.
/// Several norms of the same tokens are made at once, with one call in either pass.
class JointNorm {
 public:
  /// `ranks` outlives it; null: rows are whole.
  explicit JointNorm(Communicator* ranks) : ranks_(ranks) {}

  /// x, and y or dy and dx, are [B, S, 1, stretch] (of whole rows anything that ops/norm.h takes)
  /// and may be strided; weight is [stretch], rstd [B * S] in the dtype of statistics.
  struct Rows {
    Tensor x, weight, rstd, y;
  };
  /// y = x * rstd * weight. `knows_rstd`: it is given, and nothing is exchanged.
  void forward(std::span<const Rows> norms, double eps, bool knows_rstd, Ctx& ctx) const;
  struct Gradients {
    Tensor dy, x, weight, rstd, dx;
  };
  /// dx may be dy.
  void backward_input(std::span<const Gradients> norms, double eps, Ctx& ctx) const;

  /// Of so many norms of so many tokens.
  std::vector<LayerCall> forward_calls(std::int64_t norms, std::int64_t tokens, DType dtype) const;
  std::vector<LayerCall> backward_calls(std::int64_t norms, std::int64_t tokens, DType dtype) const;

 private:
  Communicator* ranks_;
};

}  // namespace heddle
