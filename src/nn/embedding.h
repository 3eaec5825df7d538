#pragma once

#include <memory>
#include <optional>

#include "nn/layer.h"

namespace heddle {

/// Which of the micro-batch's tokens a rank has: share `index` of `count` equal ones.
struct TokenShare {
  int index = 0, count = 1;
};

/// This share of a tensor with one element per token, padded with `padding`; the tensor itself when
/// there is one share.
Tensor own_tokens(const Tensor& ids_BS, TokenShare share, std::int32_t padding, Ctx& ctx);

/// The rows of the vocabulary that a table has, when others have the rest.
struct VocabularyRows {
  std::int64_t first = 0;
  bool are_all = true;
};

/// Ids as rows of a table of `held` rows; ops::kAbsentRow for those that others have.
Tensor rows_of(const Tensor& ids_T, const VocabularyRows& rows, std::int64_t held, Ctx& ctx);

/// The first layer: token embedding. Its input is the micro-batch's ids; backward returns no
/// tensor. With rows of the vocabulary elsewhere, its output is this holder's share of a sum.
/// The row of token `padding`, if there is one, has no gradient from here.
class Embedding : public Layer {
 public:
  explicit Embedding(std::shared_ptr<Parameter> tokens, VocabularyRows rows = {},
                     TokenShare share = {}, std::optional<std::int64_t> padding = {});

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape&) const override { return {}; }

 private:
  /// The ids of this share's tokens as rows of the table here.
  Tensor row_ids(Ctx& ctx) const;
  /// The gradient of the padding's row; none where there is no padding, or others have its row.
  std::optional<Tensor> padding_grad() const;

  enum Slot { kOutputGrad };
  std::shared_ptr<Parameter> tokens_;
  VocabularyRows rows_;
  TokenShare share_;
  std::optional<std::int64_t> padding_;
};

/// Adds a learned position embedding to the tokens, in place.
class PositionEmbedding : public Layer {
 public:
  /// `positions` is [max positions, D].
  explicit PositionEmbedding(std::shared_ptr<Parameter> positions, TokenShare share = {});

  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape&) const override { return {}; }

 private:
  enum Slot { kOutputGrad };
  std::shared_ptr<Parameter> positions_;
  TokenShare share_;
};

}  // namespace heddle
