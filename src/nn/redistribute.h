#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "mesh/layout.h"
#include "nn/activation_exchange.h"
#include "nn/layer.h"

namespace heddle {

/// Tokens of one rank when `ranks` ranks divide them: the same on every rank, the last ones padded
/// with rows of zeros.
std::int64_t tokens_per_rank(std::int64_t tokens, int ranks);

/// A change of how activations [tokens, width] lie on one axis; only dimension 0 is ever split. The
/// collective follows from the two placements by the table of mesh/layout.h, and so does the
/// backward, which changes dual(to) into dual(from).
class Redistribute final : public Layer {
 public:
  /// `comm` outlives the layer. `exchange`, if any, is over the same ranks. Throws InternalError
  /// for a change that the table does not have.
  Redistribute(Communicator& comm, Placement from, Placement to, std::int64_t width,
               std::shared_ptr<const ActivationExchange> exchange = nullptr);

  /// A sum over the ranks is made in place: x must be a fresh output that nobody keeps.
  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;

  /// Whether forward returns its input as it is.
  bool keeps_tensor() const;

 private:
  Tensor change(const Tensor& x, Placement from, Placement to, Ctx& ctx) const;
  std::vector<LayerCall> calls(Placement from, Placement to, const CostShape& shape) const;
  /// Where a whole tensor of so many elements does not travel as it is.
  const ActivationExchange* exchange_for(std::int64_t elements, DType dtype) const {
    return exchange_ && exchange_->takes(elements, dtype) ? exchange_.get() : nullptr;
  }
  Tensor all_reduce(const Tensor& x, Ctx& ctx) const;
  Tensor all_gather(const Tensor& x, Ctx& ctx) const;
  Tensor reduce_scatter(const Tensor& x, Ctx& ctx) const;
  Tensor own_rows(const Tensor& x, Ctx& ctx) const;
  Tensor pad_with_zeros(const Tensor& x, Ctx& ctx) const;

  Communicator& comm_;
  Placement from_, to_;
  std::int64_t width_;
  std::shared_ptr<const ActivationExchange> exchange_;
};

}  // namespace heddle
