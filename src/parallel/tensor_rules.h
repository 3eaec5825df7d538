#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mesh/mesh.h"
#include "nn/activation_exchange.h"
#include "nn/embedding.h"
#include "nn/layer.h"

namespace heddle {

/// How a model's layers are divided over tp: which share of a dimension a rank has, how parameters
/// lie, and where activations change their placement. The layers themselves only see smaller sizes.
class TensorRules {
 public:
  /// A [begin, begin + size) of a dimension.
  struct Cut {
    std::int64_t begin = 0, size = 0;
  };

  /// Nothing is divided.
  TensorRules() = default;
  /// With `sequence`, the regions between the divided products hold a share of the tokens each.
  /// `exchange`: of activations that do not travel as they are.
  TensorRules(Communicator& tp, bool sequence,
              std::shared_ptr<const ActivationExchange> exchange = nullptr)
      : tp_(&tp), sequence_(sequence), exchange_(std::move(exchange)) {}

  int ranks() const { return tp_ == nullptr ? 1 : tp_->size(); }
  int rank() const { return tp_ == nullptr ? 0 : tp_->rank(); }
  bool divides() const { return ranks() > 1; }
  bool splits_tokens() const { return divides() && sequence_; }
  Communicator* comm() const { return divides() ? tp_ : nullptr; }

  /// This rank's share of a dimension of `units` units of `unit` elements. Fewer units than ranks:
  /// each is held by ranks() / units neighbours.
  Cut cut(std::int64_t units, std::int64_t unit) const;
  /// Holders of the same unit.
  int copies(std::int64_t units) const;
  /// Rows of a padded vocabulary: every rank has as many, a multiple of `multiple`, of which
  /// `valid_rows` exist.
  std::int64_t padded_rows(std::int64_t vocab, std::int64_t multiple = 1) const;
  Cut valid_rows(std::int64_t vocab, std::int64_t multiple = 1) const;

  /// Placements on tp. Of the residual, the activations between blocks:
  Placement residual() const { return splits_tokens() ? shard(0) : invariant(); }
  /// of a parameter divided along `dim`:
  Layout divided(int dim) const;
  /// of one divided by key heads, of which several ranks may hold the same:
  Layout divided_keys(int dim) const;
  /// of one that every rank applies to its own tokens (norms):
  Layout on_residual() const;
  /// of one that every rank applies to its own heads or tokens:
  Layout used_apart() const;

  TokenShare token_share() const;

  /// From the residual into products whose weights are divided by output, and from products whose
  /// weights are divided by input back to it.
  void enter(Layers& layers, std::int64_t width) const;
  void leave(Layers& layers, std::int64_t width) const;
  /// From the residual to a share of the tokens on each rank, and back.
  void share_tokens(Layers& layers, std::int64_t width) const;
  void join_tokens(Layers& layers, std::int64_t width) const;

 private:
  void change(Layers& layers, Placement from, Placement to, std::int64_t width) const;

  Communicator* tp_ = nullptr;
  bool sequence_ = false;
  std::shared_ptr<const ActivationExchange> exchange_;
};

}  // namespace heddle
