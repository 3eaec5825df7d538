#include "nn/experts/router.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "nn/redistribute.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tensor/transfer.h"

namespace heddle {

Router::Router(std::unique_ptr<RouterLogits> logits, const Options& options)
    : logits_(std::move(logits)), options_(options) {
  HEDDLE_CHECK(options_.per_token >= 1 && options_.per_token <= experts(),
               "a router of {} experts that chooses {}", experts(), options_.per_token);
  HEDDLE_CHECK(!options_.bias || options_.bias->shape == Shape{experts()},
               "a bias {} of a router of {} experts", options_.bias->shape.text(), experts());
}

Router::Router(std::shared_ptr<Parameter> weight, const Options& options)
    : Router(std::make_unique<LinearLogits>(std::move(weight)), options) {}

void Router::visit(const ParamVisitor& visitor) {
  logits_->visit(visitor);
  if (options_.bias) visitor(*options_.bias);
}

Tensor Router::bias(DType dtype, Ctx& ctx) const {
  if (!options_.bias) return {};
  const Tensor& value = options_.bias->value;
  if (value.dtype() == dtype) return value;
  const Tensor wide = ctx.workspace(value.shape(), dtype);
  ops::cast(value, wide, ctx.stream);
  return wide;
}

std::int64_t Router::first_token(const Ctx& ctx) const {
  const auto [index, count] = options_.tokens;
  return count == 1 ? 0 : index * tokens_per_rank(ctx.batch.tokens(), count);
}

std::int64_t Router::place(std::int64_t token, const Ctx& ctx) const {
  const std::int64_t own = first_token(ctx) + token;
  return ctx.batch.places ? ctx.batch.places->of_whole[static_cast<std::size_t>(own)] : own;
}

std::vector<std::uint64_t> Router::token_numbers(std::int64_t tokens, const Ctx& ctx) const {
  const TokenPlaces* const places = ctx.batch.places.get();
  const std::int64_t whole =
      places != nullptr ? places->sequences * places->seq_len : ctx.batch.tokens();
  std::vector<std::uint64_t> numbers;
  numbers.reserve(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) {
    numbers.push_back(static_cast<std::uint64_t>(ctx.batch.number * whole + place(t, ctx)));
  }
  return numbers;
}

std::uint64_t Router::draw_key(const char* purpose, const Ctx& ctx) const {
  const std::uint64_t of_router = rng_key(rng_key(0, purpose), logits_->name());
  return rng_key(of_router, static_cast<std::uint64_t>(ctx.step));
}

void Router::choose(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const {
  if (ctx.keeps_dear() || experts_choose()) return choose_trained(logits_TE, routing, ctx);
  ops::route(logits_TE, options_.rule, bias(logits_TE.dtype(), ctx), routing.experts_TK,
             routing.weights_TK, ctx.stream);
}

void Router::choose_trained(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const {
  const GateRule& gate = options_.gate;
  Tensor keys = logits_TE;
  if (gate.noise != ops::Noise::none && ctx.keeps_dear()) {
    const auto numbers = token_numbers(logits_TE.size(0), ctx);
    double scale = gate.noise_scale;
    if (gate.noise == ops::Noise::gumbel) {
      keys = ctx.workspace(logits_TE.shape(), logits_TE.dtype());
      ops::copy(logits_TE, keys, ctx.stream);
    } else {
      scale /= static_cast<double>(experts());
    }
    ops::add_noise(keys, gate.noise, scale, {draw_key("router noise", ctx), numbers}, ctx.stream);
  }
  const auto weigh = [&] {
    ops::weigh_choices(logits_TE, options_.rule, routing.experts_TK, routing.weights_TK,
                       ctx.stream);
  };
  switch (gate.choice) {
    case GateRule::Choice::top_scores:
      ops::route(keys, options_.rule, bias(keys.dtype(), ctx), routing.experts_TK,
                 routing.weights_TK, ctx.stream);
      if (gate.noise == ops::Noise::gumbel) weigh();
      return;
    case GateRule::Choice::sinkhorn:
      ops::choose_by_plan(keys, gate.sinkhorn, routing.experts_TK, ctx.stream);
      return weigh();
    case GateRule::Choice::expert_choice: {
      const std::int64_t tokens = keys.size(0);
      Capacity share = gate.capacity;
      if (!share.limits()) share.factor = 1.0;
      const std::int64_t room = tokens == 0 ? 0 : share.rows(tokens, experts(), options_.per_token);
      ops::choose_tokens(keys, room, routing.experts_TK, ctx.stream);
      return weigh();
    }
  }
}

Tensor Router::drop(const Tensor& logits_TE, const Routing& routing, Ctx& ctx) const {
  const Capacity& capacity = options_.gate.capacity;
  const std::int64_t tokens = logits_TE.size(0);
  const Tensor made_TK = ctx.activation(routing.experts_TK.shape(), DType::i32);
  ops::copy(routing.experts_TK, made_TK, ctx.stream);
  if (tokens == 0) return made_TK;
  const Tensor scores_TK = ctx.workspace(routing.weights_TK.shape(), logits_TE.dtype());
  ops::RouterRule plain = options_.rule;
  plain.renormalize = false;
  plain.scale = 1.0;
  ops::weigh_choices(logits_TE, plain, made_TK, scores_TK, ctx.stream);
  std::vector<std::uint64_t> numbers;
  if (capacity.victims == ops::Victims::random) numbers = token_numbers(tokens, ctx);
  ops::drop_choices(
      scores_TK, capacity.victims, capacity.rows(tokens, experts(), options_.per_token),
      {draw_key("dropped tokens", ctx), numbers}, experts(), routing.experts_TK, ctx.stream);
  if (capacity.renormalizes) {
    ops::weigh_choices(logits_TE, options_.rule, routing.experts_TK, routing.weights_TK,
                       ctx.stream);
  }
  return made_TK;
}

void Router::mark_bad(const Tensor& logits_TE, Ctx& ctx) const {
  if (!ctx.expert_load.defined()) return;
  const Tensor load = ctx.expert_load.select(0, options_.layer);
  ops::mark_non_finite(logits_TE, load.slice(0, load.count() - 1, load.count()), ctx.stream);
}

Routing Router::route(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  if (saved.has(kExperts)) return routing(saved);
  const std::int64_t T = x_TD.size(0);
  const DType dtype = statistics_of(x_TD.dtype());
  const Tensor logits_TE = logits_->forward(x_TD, saved.child(kOfLogits), ctx);
  const Routing made{.experts_TK = ctx.activation({T, slots()}, DType::i32),
                     .weights_TK = ctx.activation({T, slots()}, dtype)};
  mark_bad(logits_TE, ctx);
  choose(logits_TE, made, ctx);
  const bool drops = ctx.keeps_dear() && limits();
  const Tensor chosen_TK = drops ? drop(logits_TE, made, ctx) : made.experts_TK;
  if (ctx.on_choices != nullptr) {
    (*ctx.on_choices)({.layer = options_.layer,
                       .numbers = token_numbers(T, ctx),
                       .experts_TK = to_host(made.experts_TK, ctx.stream),
                       .are_counted = options_.counts});
  }
  if (!ctx.keeps_dear()) return made;
  if (ctx.expert_load.defined() && options_.counts) {
    ops::add_load(chosen_TK, made.experts_TK, ctx.expert_load.select(0, options_.layer),
                  ctx.stream);
  }
  if (counts_choices()) saved.put(kCounts, count(chosen_TK, dtype, ctx));
  saved.put(kLogits, logits_TE);
  saved.put(kExperts, made.experts_TK);
  saved.put(kWeights, made.weights_TK);
  if (weighs_dropped()) saved.put(kMade, chosen_TK);
  return made;
}

Routing Router::routing(const Saved& saved) const {
  return {.experts_TK = saved.get(kExperts), .weights_TK = saved.get(kWeights)};
}

Tensor Router::backward_input(const Tensor& dweights_TK, const Tensor& addend_TD, Saved& saved,
                              Ctx& ctx) {
  const Tensor logits_TE = saved.take(kLogits), kept_TK = saved.take(kExperts);
  // Of a choice that was dropped behind the division the gradient of the weight is zero.
  const Tensor weighed_TK = weighs_dropped() ? saved.take(kMade) : kept_TK;
  saved.take(kWeights);
  const Tensor dlogits_TE = ctx.activation(logits_TE.shape(), logits_TE.dtype());
  ops::route_backward(dweights_TK, logits_TE, options_.rule, weighed_TK, dlogits_TE, ctx.stream);
  const Tensor counts = counts_choices() ? saved.take(kCounts) : Tensor();
  if (has_loss()) add_losses(logits_TE, counts, dlogits_TE, ctx);
  return logits_->backward_input(dlogits_TE, addend_TD, saved.child(kOfLogits), ctx);
}

void Router::backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  logits_->backward_weight(x_TD, saved.child(kOfLogits), ctx);
  if (options_.bias && options_.bias->trains) options_.bias->clear_stale_grad(ctx.stream);
}

Cost Router::cost(const CostShape& shape) const {
  Cost cost = logits_->cost(shape);
  const std::size_t statistic = size_of(statistics_of(shape.dtype)), index = size_of(DType::i32);
  const auto tokens = static_cast<std::size_t>(shape.tokens());
  const auto count = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  cost.dear_bytes += tokens * (count(experts()) * statistic + count(slots()) * (statistic + index));
  if (weighs_dropped()) cost.dear_bytes += tokens * count(slots()) * index;
  if (counts_choices()) {
    const std::size_t rows = balances_sequences() ? count(shape.sequences) : 1;
    const std::size_t counts = rows * count(experts() + 1) * statistic;
    cost.dear_bytes += counts;
    for (const Communicator* group : options_.sharers) {
      cost.calls_f.push_back({.over = group,
                              .op = CommOp::all_reduce,
                              .bytes = static_cast<std::int64_t>(counts),
                              .is_dear = true});
    }
  }
  cost.saved_bytes = cost.dear_bytes;
  return cost;
}

}  // namespace heddle
