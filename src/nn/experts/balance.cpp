// The losses of a router: which counts they pull together, and their gradients.

#include "nn/experts/router.h"
#include "ops/elementwise.h"

namespace heddle {

std::vector<Router::SequenceRun> Router::runs_of(std::int64_t tokens, const Ctx& ctx) const {
  const TokenPlaces* const places = ctx.batch.places.get();
  const std::int64_t length = places != nullptr ? places->seq_len : ctx.batch.seq_len();
  std::vector<SequenceRun> runs;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t sequence = place(t, ctx) / length;
    if (runs.empty() || runs.back().sequence != sequence) runs.push_back({sequence, t, t});
    ++runs.back().end;
  }
  return runs;
}

Tensor Router::sequences_of(std::int64_t tokens, Ctx& ctx) const {
  const Tensor sequence_T = ctx.workspace({tokens}, DType::i32);
  for (const auto& [sequence, begin, end] : runs_of(tokens, ctx)) {
    ops::fill(sequence_T.slice(0, begin, end), static_cast<double>(sequence), ctx.stream);
  }
  return sequence_T;
}

Tensor Router::count(const Tensor& experts_TK, DType dtype, Ctx& ctx) const {
  const std::int64_t tokens = experts_TK.size(0);
  Tensor counts;
  if (balances_sequences()) {
    const std::int64_t sequences =
        ctx.batch.places ? ctx.batch.places->sequences : ctx.batch.sequences();
    counts = ctx.activation({sequences, experts() + 1}, dtype);
    ops::count_by_sequence(experts_TK, sequences_of(tokens, ctx), slots(), counts, ctx.stream);
  } else {
    counts = ctx.activation({experts() + 1}, dtype);
    if (options_.gate.balance == Balance::first_choices) {
      const Tensor all = ctx.workspace({tokens}, DType::i32);
      ops::fill(all, 0.0, ctx.stream);
      ops::count_by_sequence(experts_TK, all, 1, counts.view({1, experts() + 1}), ctx.stream);
    } else {
      ops::count_choices(experts_TK, counts, ctx.stream);
    }
  }
  for (Communicator* group : options_.sharers) {
    group->all_reduce(counts, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  }
  return counts;
}

Tensor Router::last_counts(DType dtype, Ctx& ctx) const {
  const Tensor counts_E1 = ctx.workspace({experts() + 1}, dtype);
  // As choices by token, since their number may be beyond what f32 counts.
  ops::counts_of_load(ctx.last_load.select(0, options_.layer), options_.per_token, counts_E1,
                      ctx.stream);
  return counts_E1;
}

void Router::add_losses(const Tensor& logits_TE, const Tensor& counts, const Tensor& dlogits_TE,
                        Ctx& ctx) const {
  const Balance balance = options_.gate.balance;
  ops::RouterLoss loss{.balance = ctx.router_scale * options_.loss.balance,
                       .z = ctx.router_scale * options_.loss.z};
  // Shares of choices: a token has several.
  if (balance != Balance::choices && balance != Balance::first_choices) {
    loss.balance /= static_cast<double>(options_.per_token);
  }
  if (balances_sequences()) {
    return add_losses_by_sequence(logits_TE, counts, loss, dlogits_TE, ctx);
  }
  Tensor of_all = counts;
  if (balance == Balance::global && balances() && ctx.last_load.defined()) {
    of_all = last_counts(logits_TE.dtype(), ctx);
  } else if (!of_all.defined()) {
    of_all = ctx.workspace({experts() + 1}, logits_TE.dtype());
    loss.balance = 0.0;
  }
  ops::router_loss_backward(logits_TE, options_.rule, of_all, loss, dlogits_TE, ctx.stream);
}

void Router::add_losses_by_sequence(const Tensor& logits_TE, const Tensor& counts_SE1,
                                    const ops::RouterLoss& loss, const Tensor& dlogits_TE,
                                    Ctx& ctx) const {
  for (const auto& [sequence, begin, end] : runs_of(logits_TE.size(0), ctx)) {
    ops::router_loss_backward(logits_TE.slice(0, begin, end), options_.rule,
                              counts_SE1.select(0, sequence), loss, dlogits_TE.slice(0, begin, end),
                              ctx.stream);
  }
}

}  // namespace heddle
