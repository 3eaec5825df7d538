#include "nn/joint_norm.h"

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/norm.h"

namespace heddle {
namespace {

// Everything is made of operations on rows that exist: of a column [T, 1] the RMS statistic is 1 /
// |value|, and sums of rows with weights multiply columns.

/// Numbers of a token, and operations on them.
class Columns {
 public:
  Columns(std::int64_t tokens, DType dtype, Ctx& ctx) : tokens_(tokens), dtype_(dtype), ctx_(ctx) {
    // Row t of every token t.
    const Tensor offsets = ctx.workspace({2}, DType::i32),
                 token = ctx.workspace({tokens}, DType::i32);
    const Tensor first = ctx.workspace({tokens, 1}, DType::i32);
    ops::fill(first, 0.0, ctx.stream);
    each_T1_ = ctx.workspace({tokens, 1}, DType::i32);
    ops::order_by_expert(first, offsets, token, each_T1_, ctx.stream);
  }

  Tensor make() const { return ctx_.workspace({tokens_}, dtype_); }
  /// 1 / sqrt of the mean of squares over the columns of x [T, N].
  void inverse_rms(const Tensor& x_TN, const Tensor& result) const {
    const Tensor ones = ctx_.workspace({x_TN.size(1)}, dtype_),
                 y = ctx_.workspace(x_TN.shape(), dtype_);
    ops::fill(ones, 1.0, ctx_.stream);
    ops::rms_norm_forward(x_TN, ones, 0.0, y, result, ctx_.stream);
  }
  Tensor inverse(const Tensor& values_T) const {
    Tensor result = make();
    inverse_rms(values_T.view({tokens_, 1}), result);
    return result;
  }
  /// y_TD = addend + rows times values.
  void scale(const Tensor& rows_TD, const Tensor& values_T, const Tensor& addend_TD,
             const Tensor& y_TD) const {
    ops::combine_rows(rows_TD, each_T1_, values_T.view({tokens_, 1}), addend_TD, y_TD, ctx_.stream);
  }
  Tensor product(const Tensor& a_T, const Tensor& b_T) const {
    Tensor result = make();
    scale(a_T.view({tokens_, 1}), b_T, {}, result.view({tokens_, 1}));
    return result;
  }

 private:
  const std::int64_t tokens_;
  const DType dtype_;
  Ctx& ctx_;
  Tensor each_T1_;
};

/// [T, stretch].
Tensor flat(const Tensor& rows) { return rows.view({rows.size(0) * rows.size(1), rows.size(3)}); }

/// As every rank normalizes its own stretch.
struct OwnNorm {
  Tensor y_TD, inverse_rstd_T;
};
OwnNorm own_norm(const Tensor& x, const Tensor& weight, double eps, const Columns& columns,
                 Ctx& ctx) {
  OwnNorm own{.y_TD = ctx.workspace({x.size(0) * x.size(1), x.size(3)}, x.dtype()),
              .inverse_rstd_T = {}};
  const Tensor rstd = columns.make();
  ops::rms_norm_forward(x, weight, eps, own.y_TD.view(x.shape()), rstd, ctx.stream);
  own.inverse_rstd_T = columns.inverse(rstd);
  return own;
}

}  // namespace

// 1 / rstd^2 is the mean of squares plus eps, also of a stretch; so that of the whole is the mean
// over the stretches.
void JointNorm::forward(std::span<const Rows> norms, double eps, bool knows_rstd, Ctx& ctx) const {
  if (ranks_ == nullptr) {
    for (const auto& [x, weight, rstd, y] : norms) {
      ops::rms_norm_forward(x, weight, eps, y, rstd, ctx.stream);
    }
    return;
  }
  const std::int64_t tokens = norms[0].rstd.count(), N = std::ssize(norms), P = ranks_->size();
  const Columns columns(tokens, norms[0].rstd.dtype(), ctx);
  std::vector<OwnNorm> own;
  for (const auto& [x, weight, rstd, y] : norms) {
    own.push_back(own_norm(x, weight, eps, columns, ctx));
  }
  if (!knows_rstd) {
    const Tensor sent = ctx.workspace({N, tokens}, norms[0].rstd.dtype());
    const Tensor all = ctx.workspace({P * N, tokens}, sent.dtype());
    for (std::int64_t i = 0; i < N; ++i) {
      ops::copy(own[static_cast<std::size_t>(i)].inverse_rstd_T.view({1, tokens}),
                sent.slice(0, i, i + 1), ctx.stream);
    }
    ranks_->all_gather(sent, all, ctx.stream).wait(ctx.stream);
    for (std::int64_t i = 0; i < N; ++i) {
      const Tensor by_rank_TP = ctx.workspace({tokens, P}, sent.dtype());
      for (std::int64_t p = 0; p < P; ++p) {
        ops::copy(all.slice(0, p * N + i, p * N + i + 1).view({tokens, 1}),
                  by_rank_TP.slice(1, p, p + 1), ctx.stream);
      }
      columns.inverse_rms(by_rank_TP, norms[static_cast<std::size_t>(i)].rstd);
    }
  }
  for (std::size_t i = 0; i < norms.size(); ++i) {
    columns.scale(own[i].y_TD, columns.product(own[i].inverse_rstd_T, norms[i].rstd), {},
                  flat(norms[i].y));
  }
}

// dx = rstd g - x rstd^3 mean(g x) with g = dy * weight. With the mean over its stretch every rank
// has all but x rstd^3 times (own mean - mean over the ranks).
void JointNorm::backward_input(std::span<const Gradients> norms, double eps, Ctx& ctx) const {
  if (ranks_ == nullptr) {
    for (const auto& [dy, x, weight, rstd, dx] : norms) {
      ops::rms_norm_backward_input(dy, x, weight, rstd, dx, ctx.stream);
    }
    return;
  }
  const std::int64_t tokens = norms[0].rstd.count();
  const Columns columns(tokens, norms[0].rstd.dtype(), ctx);
  const Tensor sums = ctx.workspace({std::ssize(norms), tokens}, norms[0].rstd.dtype());
  std::vector<Tensor> own_sums;
  for (const auto& [dy, x, weight, rstd, dx] : norms) {
    const OwnNorm own = own_norm(x, weight, eps, columns, ctx);
    const Tensor dots = columns.make();
    ops::attention_delta(dy, own.y_TD.view(x.shape()), dots.view({x.size(0), 1, x.size(1)}),
                         ctx.stream);
    const auto i = static_cast<std::int64_t>(own_sums.size());
    own_sums.push_back(columns.product(dots, own.inverse_rstd_T));
    ops::copy(own_sums.back().view({1, tokens}), sums.slice(0, i, i + 1), ctx.stream);
  }
  ranks_->all_reduce(sums, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  ops::scale(sums, -1.0 / ranks_->size(), ctx.stream);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const auto& [dy, x, weight, rstd, dx] = norms[i];
    const auto row = static_cast<std::int64_t>(i);
    ops::accumulate(sums.slice(0, row, row + 1).view({tokens}), own_sums[i], ctx.stream);
    ops::scale(own_sums[i], 1.0 / static_cast<double>(x.size(3)), ctx.stream);
    const Tensor factor =
        columns.product(columns.product(columns.product(own_sums[i], rstd), rstd), rstd);
    const Tensor own = ctx.workspace({tokens, x.size(3)}, x.dtype());
    ops::rms_norm_backward_input(dy, x, weight, rstd, own.view(x.shape()), ctx.stream);
    columns.scale(flat(x), factor, own, flat(dx));
  }
}

std::vector<LayerCall> JointNorm::forward_calls(std::int64_t norms, std::int64_t tokens,
                                                DType dtype) const {
  if (ranks_ == nullptr) return {};
  const auto bytes = norms * tokens * static_cast<std::int64_t>(size_of(statistics_of(dtype)));
  return {{ranks_, CommOp::all_gather, bytes * ranks_->size()}};
}

std::vector<LayerCall> JointNorm::backward_calls(std::int64_t norms, std::int64_t tokens,
                                                 DType dtype) const {
  if (ranks_ == nullptr) return {};
  const auto bytes = norms * tokens * static_cast<std::int64_t>(size_of(statistics_of(dtype)));
  return {{ranks_, CommOp::all_reduce, bytes}};
}

}  // namespace heddle
