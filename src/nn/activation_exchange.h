#pragma once

#include <vector>

#include "nn/layer.h"

namespace heddle {

/// How the ranks of a group exchange activations that do not travel as they are. All ranks decide
/// by sizes alone, so they agree.
class ActivationExchange {
 public:
  virtual ~ActivationExchange() = default;
  /// Whether a whole tensor of so many elements goes this way; others go plainly.
  virtual bool takes(std::int64_t elements, DType dtype) const = 0;
  /// In place of the communicator's calls of these names; the results are there for what comes
  /// behind on the stream. Sums are made in place.
  virtual void all_reduce(const Tensor& x, Stream& stream) const = 0;
  virtual void all_gather(const Tensor& part, const Tensor& whole, Stream& stream) const = 0;
  virtual void reduce_scatter(const Tensor& whole, const Tensor& part, Stream& stream) const = 0;
  /// What is called in place of `op` on a whole tensor of so many elements.
  virtual std::vector<LayerCall> calls(CommOp op, std::int64_t elements, DType dtype) const = 0;
};

}  // namespace heddle
