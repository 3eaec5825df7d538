#include "parallel/sequence/context_attention.h"

#include "ops/cast.h"
#include "parallel/sequence/context_walk.h"

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

ContextAttention::ContextAttention(const AttentionShape& shape, double scale, int index,
                                   Communicator& ranks)
    : shape_(shape), scale_(scale), ranks_(ranks), whole_(shape, scale, index) {}

Tensor ContextAttention::forward(const Tensor& qkv, Saved& saved, Ctx& ctx) {
  if (!ctx.batch.context) return whole_.forward(qkv, saved, ctx);
  const ContextProgram& program = ctx.batch.context->forward;
  const Qkv held = split_qkv(qkv, shape_, ctx.batch);
  const DType dtype = qkv.dtype(), wide = statistics_of(dtype);
  const std::int64_t K = shape_.head_dim;
  const Piece& own = program.pieces[Own::kQueries];
  const std::int64_t tokens = tokens_in(own.tokens), heads = own.heads.count;
  const std::int64_t key_heads = program.pieces[Own::kKeys].heads.count;

  std::vector<PieceTensors> pieces(program.exchanges_heads ? 2 * Own::kOwn : Own::kOwn);
  const Tensor out_wide = ctx.activation({ctx.batch.tokens(), shape_.out_width()}, wide);
  const Tensor out_BSHK = out_wide.view({1, ctx.batch.tokens(), shape_.heads, K});
  const Tensor lse_BHS = ctx.activation({1, heads, tokens}, wide);
  Tensor share_out = out_BSHK;
  if (program.exchanges_heads) {
    const Tensor q = ctx.activation({1, tokens, heads, K}, dtype);
    const Tensor k = ctx.activation({1, tokens, key_heads, K}, dtype);
    const Tensor v = ctx.activation({1, tokens, key_heads, K}, dtype);
    share_out = ctx.activation({1, tokens, heads, K}, wide);
    pieces[Own::kQueries].rows = {q};
    pieces[Own::kKeys].rows = {k, v};
    pieces[Held::kHeldQueries].rows = {held.q_BSHK};
    pieces[Held::kHeldKeys].rows = {held.k_BSGK, held.v_BSGK};
    pieces[Held::kHeldResults].rows = {out_BSHK};
  } else {
    pieces[Own::kQueries].rows = {held.q_BSHK};
    pieces[Own::kKeys].rows = {held.k_BSGK, held.v_BSGK};
  }
  pieces[Own::kResults] = {.rows = {share_out}, .statistics = {lse_BHS}};
  if (ctx.keeps_saved) {
    if (program.exchanges_heads) {
      saved.put(kQueries, pieces[Own::kQueries].rows[0]);
      saved.put(kKeys, pieces[Own::kKeys].rows[0]);
      saved.put(kValues, pieces[Own::kKeys].rows[1]);
    } else {
      saved.put(kQkv, qkv);
    }
  }
  ContextWalk({.program = program,
               .pass = ContextPassKind::forward,
               .head_dim = K,
               .scale = scale_,
               .dtype = dtype},
              std::move(pieces), ranks_, ctx)
      .run();
  Tensor out = converted(out_wide, dtype, ctx);
  if (ctx.keeps_saved) {
    saved.put(kOut, program.exchanges_heads ? converted(share_out, dtype, ctx) : out);
    saved.put(kLse, lse_BHS);
  }
  return out;
}

Tensor ContextAttention::backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) {
  if (!ctx.batch.context) return whole_.backward_input(dout, saved, ctx);
  const ContextProgram& program = ctx.batch.context->backward;
  const DType dtype = dout.dtype(), wide = statistics_of(dtype);
  const std::int64_t K = shape_.head_dim;
  const Piece& own = program.pieces[Own::kQueries];
  const std::int64_t tokens = tokens_in(own.tokens), heads = own.heads.count;
  const std::int64_t key_heads = program.pieces[Own::kKeys].heads.count;
  const Tensor held_dout = dout.view({1, ctx.batch.tokens(), shape_.heads, K});
  const Tensor out = saved.take(kOut), lse_BHS = saved.take(kLse);
  const Tensor delta_BHS = ctx.workspace(lse_BHS.shape(), wide);
  const Tensor dqkv = ctx.activation({ctx.batch.tokens(), shape_.qkv_width()}, wide);
  const Qkv held_grad = split_qkv(dqkv, shape_, ctx.batch);

  std::vector<PieceTensors> pieces(program.exchanges_heads ? 2 * Own::kOwn : Own::kOwn);
  if (program.exchanges_heads) {
    pieces[Own::kQueries].rows = {saved.take(kQueries),
                                  ctx.workspace({1, tokens, heads, K}, dtype)};
    pieces[Own::kKeys].rows = {saved.take(kKeys), saved.take(kValues)};
    pieces[Own::kResults].rows = {ctx.workspace({1, tokens, heads, K}, wide)};
    pieces[Own::kKeyResults].rows = {ctx.workspace({1, tokens, key_heads, K}, wide),
                                     ctx.workspace({1, tokens, key_heads, K}, wide)};
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
  ContextWalk({.program = program,
               .pass = ContextPassKind::backward,
               .head_dim = K,
               .scale = scale_,
               .dtype = dtype,
               .output = out.view({1, tokens, heads, K})},
              std::move(pieces), ranks_, ctx)
      .run();
  return converted(dqkv, dtype, ctx);
}

Cost ContextAttention::cost(const CostShape& shape) const { return whole_.cost(shape); }

}  // namespace heddle
