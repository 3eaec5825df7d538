#include "parallel/sequence/context_attention.h"

#include <algorithm>

#include "base/check.h"
#include "nn/kv_cache.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "parallel/sequence/attention_meter.h"
#include "parallel/sequence/walk_sizes.h"

namespace heddle {
namespace {

using Own = ContextProgram::Own;
using Held = ContextProgram::Held;

/// The same numbers as `dtype`, which may be its own.
Tensor converted(const Tensor& x, DType dtype, Ctx& ctx) {
  if (x.dtype() == dtype) return x;
  const Tensor y = ctx.activation(x.shape(), dtype);
  ops::cast(x, y, ctx.stream);
  return y;
}

}  // namespace

Shape ContextAttention::rows_shape(const ContextProgram& program, int piece) const {
  const Piece& what = program.pieces[static_cast<std::size_t>(piece)];
  return {1, tokens_in(what.tokens), what.heads.count, shape_.head_dim};
}

ContextAttention::ContextAttention(const AttentionShape& shape, const ops::ScoreRule& rule,
                                   int index, Communicator& ranks,
                                   std::optional<std::int64_t> window)
    : shape_(shape),
      rule_(rule),
      index_(index),
      ranks_(ranks),
      window_(window),
      whole_(shape, rule, index, window) {}

Tensor ContextAttention::whole_sequence(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  if (ctx.kv_cache == nullptr) return whole_.forward(qkv, saved, ctx);
  if (ctx.kv_cache->length() > 0) return decode(qkv, ctx);
  Ctx without_cache = ctx;  // whose keys are here only in part
  without_cache.kv_cache = nullptr;
  return whole_.forward(qkv, saved, without_cache);
}

Tensor ContextAttention::decode(const Tensor& qkv, Ctx& ctx) const {
  const std::int64_t B = ctx.batch.sequences(), H = shape_.heads, K = shape_.head_dim;
  HEDDLE_CHECK(ctx.batch.seq_len() == 1, "{} tokens at once behind a divided cache",
               ctx.batch.seq_len());
  const auto seen = [&](const Tensor& all_BTGK) {
    if (!window_) return all_BTGK;
    const std::int64_t first = ctx.kv_cache->length() + 1 - *window_;
    return all_BTGK.slice(1, ctx.kv_cache->held_before(first), all_BTGK.size(1));
  };
  const Tensor k_BTGK = seen(ctx.kv_cache->keys(index_, 1)),
               v_BTGK = seen(ctx.kv_cache->values(index_, 1));
  const std::int64_t rows = B * H * K, each = rows + B * H;
  const Tensor parts = ctx.workspace({ranks_.size() * each}, statistics_of(qkv.dtype()));
  const auto out_of = [&](int rank) {
    return parts.slice(0, rank * each, rank * each + rows).view({B, 1, H, K});
  };
  const auto lse_of = [&](int rank) {
    return parts.slice(0, rank * each + rows, (rank + 1) * each).view({B, H, 1});
  };
  const int own = ranks_.rank();
  ops::attention_block_forward(split_qkv(qkv, shape_, ctx.batch).q_BSHK, k_BTGK, v_BTGK,
                               {.query_offset = k_BTGK.size(1), .first_key_BS = {}}, rule_,
                               ops::KeyBlock::first, out_of(own), lse_of(own), ctx.stream);
  ranks_.all_gather(parts.slice(0, own * each, (own + 1) * each), parts, ctx.stream)
      .wait(ctx.stream);
  for (int rank = 1; rank < ranks_.size(); ++rank) {
    ops::attention_merge(out_of(rank), lse_of(rank), out_of(0), lse_of(0), ctx.stream);
  }
  const Tensor out = ctx.activation({B, shape_.out_width()}, parts.dtype());
  ops::copy(out_of(0), out.view({B, 1, H, K}), ctx.stream);
  return converted(out, qkv.dtype(), ctx);
}

ContextWalk::Setting ContextAttention::setting(ContextPassKind pass, DType dtype,
                                               const Ctx& ctx) const {
  const RankContext& context = context_of(ctx.batch);
  return {.program = pass == ContextPassKind::forward ? context.forward : context.backward,
          .pass = pass,
          .head_dim = shape_.head_dim,
          .rule = rule_,
          .dtype = dtype,
          .layer = index_,
          .meter = context.meter.get()};
}

std::vector<PieceTensors> ContextAttention::given(const Tensor& qkv, Saved& saved, Ctx& ctx) const {
  const ContextProgram& program = context_of(ctx.batch).forward;
  const Qkv held = split_qkv(qkv, shape_, ctx.batch);
  std::vector<PieceTensors> pieces(program.exchanges_heads ? 2 * Own::kOwn : Own::kOwn);
  if (!program.exchanges_heads) {
    pieces[Own::kQueries].rows = {held.q_BSHK};
    pieces[Own::kKeys].rows = {held.k_BSGK, held.v_BSGK};
    if (ctx.keeps_all()) saved.put(kQkv, qkv);
    return pieces;
  }
  const auto of_share = [&](int piece) {
    return ctx.activation(rows_shape(program, piece), qkv.dtype());
  };
  const Tensor q = of_share(Own::kQueries), k = of_share(Own::kKeys), v = of_share(Own::kKeys);
  pieces[Own::kQueries].rows = {q};
  pieces[Own::kKeys].rows = {k, v};
  pieces[Held::kHeldQueries].rows = {held.q_BSHK};
  pieces[Held::kHeldKeys].rows = {held.k_BSGK, held.v_BSGK};
  if (ctx.keeps_all()) {
    saved.put(kQueries, q);
    saved.put(kKeys, k);
    saved.put(kValues, v);
  }
  return pieces;
}

Tensor ContextAttention::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  if (!ctx.batch.context) return whole_sequence(qkv, saved, ctx);
  const RankContext& context = context_of(ctx.batch);
  const ContextProgram& program = context.forward;
  const DType dtype = qkv.dtype(), wide = statistics_of(dtype);
  std::vector<PieceTensors> pieces = given(qkv, saved, ctx);
  if (saved.has(kOut)) {  // kept while the rest is computed again
    if (!program.exchanges_heads) return saved.get(kOut);
    ContextWalk(setting(ContextPassKind::forward, dtype, ctx), std::move(pieces), ranks_, ctx)
        .fill_share();
    return saved.take(kHeldOut);
  }
  const Tensor held_out = ctx.activation({ctx.batch.tokens(), shape_.out_width()}, wide);
  const Tensor held_rows = held_out.view({1, ctx.batch.tokens(), shape_.heads, shape_.head_dim});
  Tensor share_out = held_rows;
  if (program.exchanges_heads) {
    share_out = ctx.activation(rows_shape(program, Own::kQueries), wide);
    pieces[Held::kHeldResults].rows = {held_rows};
  }
  const Tensor lse_BHS = ctx.activation({1, share_out.size(2), share_out.size(1)}, wide);
  pieces[Own::kResults] = {.rows = {share_out}, .statistics = {lse_BHS}};
  ContextWalk(setting(ContextPassKind::forward, dtype, ctx), std::move(pieces), ranks_, ctx).run();
  if (context.meter && context.meter->is_on()) {
    context.meter->of(index_).head_pairs += context.head_pairs;
  }
  Tensor out = converted(held_out, dtype, ctx);
  if (ctx.keeps_dear()) {
    saved.put(kOut, program.exchanges_heads ? converted(share_out, dtype, ctx) : out);
    saved.put(kLse, lse_BHS);
    // The output projection's input is made again, too, from what has come home.
    if (program.exchanges_heads && !ctx.keeps_all()) saved.put(kHeldOut, out);
  }
  return out;
}

Tensor ContextAttention::backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) {
  if (!ctx.batch.context) return whole_.backward_input(dout, saved, ctx);
  const ContextProgram& program = context_of(ctx.batch).backward;
  const DType dtype = dout.dtype(), wide = statistics_of(dtype);
  const Tensor held_dout = dout.view({1, ctx.batch.tokens(), shape_.heads, shape_.head_dim});
  const Tensor out = saved.take(kOut), lse_BHS = saved.take(kLse);
  const Tensor delta_BHS = ctx.workspace(lse_BHS.shape(), wide);
  const Tensor dqkv = ctx.activation({ctx.batch.tokens(), shape_.qkv_width()}, wide);
  const Qkv held_grad = split_qkv(dqkv, shape_, ctx.batch);

  std::vector<PieceTensors> pieces(program.exchanges_heads ? 2 * Own::kOwn : Own::kOwn);
  if (program.exchanges_heads) {
    const auto of_share = [&](int piece, DType type) {
      return ctx.workspace(rows_shape(program, piece), type);
    };
    pieces[Own::kQueries].rows = {saved.take(kQueries), of_share(Own::kQueries, dtype)};
    pieces[Own::kKeys].rows = {saved.take(kKeys), saved.take(kValues)};
    pieces[Own::kResults].rows = {of_share(Own::kQueries, wide)};
    pieces[Own::kKeyResults].rows = {of_share(Own::kKeys, wide), of_share(Own::kKeys, wide)};
    pieces[Held::kHeldQueries].rows = {Tensor(), held_dout};
    pieces[Held::kHeldResults].rows = {held_grad.q_BSHK};
    pieces[Held::kHeldKeyResults].rows = {held_grad.k_BSGK, held_grad.v_BSGK};
  } else {
    const Qkv held = split_qkv(saved.take(kQkv), shape_, ctx.batch);
    pieces[Own::kQueries].rows = {held.q_BSHK, held_dout};
    pieces[Own::kKeys].rows = {held.k_BSGK, held.v_BSGK};
    pieces[Own::kResults].rows = {held_grad.q_BSHK};
    pieces[Own::kKeyResults].rows = {held_grad.k_BSGK, held_grad.v_BSGK};
  }
  pieces[Own::kQueries].statistics = {lse_BHS, delta_BHS};
  ContextWalk::Setting backward = setting(ContextPassKind::backward, dtype, ctx);
  backward.output = out.view(rows_shape(program, Own::kQueries));
  ContextWalk(backward, std::move(pieces), ranks_, ctx).run();
  return converted(dqkv, dtype, ctx);
}

Cost ContextAttention::cost(const CostShape& shape) const {
  if (!shape.context) return whole_.cost(shape);
  const RankContext& context = shape.context->of(window_);
  const ContextPlan& plan = context.plan;
  const ContextProgram &forward = context.forward, &backward = context.backward;
  const auto bytes_of_share = [&](int piece) {
    return static_cast<std::size_t>(rows_shape(forward, piece).count()) * size_of(shape.dtype);
  };
  const std::size_t queries = bytes_of_share(Own::kQueries), keys = bytes_of_share(Own::kKeys);
  const std::size_t lse =
      static_cast<std::size_t>(rows_shape(forward, Own::kQueries).count() / shape_.head_dim) *
      size_of(statistics_of(shape.dtype));
  // As of whole sequences: two products forward, four backward.
  const double flops =
      4.0 * static_cast<double>(context.head_pairs) * static_cast<double>(shape_.head_dim);
  Cost cost{flops, 2.0 * flops, 0.0, 2 * queries + 2 * keys + lse};
  cost.attention_flops = flops;
  cost.dear_bytes = queries + lse;
  if (forward.exchanges_heads) {
    cost.dear_bytes += shape.bytes(shape_.out_width());  // the output that came home
  } else {
    cost.kept_input_bytes = queries + 2 * keys;
    cost.kept_output_bytes = queries;
  }
  const auto add_calls = [&](const ContextProgram& program, std::vector<LayerCall>& calls) {
    const auto add = [&](const Transfer& transfer, CommOp op) {
      for (const std::int64_t bytes : buffer_bytes(transfer.message, plan.shape, shape.dtype)) {
        if (bytes > 0) calls.push_back({&ranks_, op, bytes, !transfer.fills_share});
      }
    };
    for (const ProgramRound& round : program.rounds) {
      for (const Transfer& transfer : round.receives) add(transfer, CommOp::recv);
      for (const Transfer& transfer : round.sends) add(transfer, CommOp::send);
    }
  };
  cost.working_bytes =
      static_cast<std::size_t>(std::max(workspace_bytes(forward, plan.shape, shape.dtype),
                                        workspace_bytes(backward, plan.shape, shape.dtype)));
  add_calls(forward, cost.calls_f);
  add_calls(backward, cost.calls_b);
  return cost;
}

}  // namespace heddle
