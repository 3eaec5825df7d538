#include "nn/experts/experts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "nn/decoded_rows.h"
#include "nn/experts/one_exchange.h"
#include "nn/experts/pass_walk.h"
#include "nn/redistribute.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace heddle {

using ops::Transpose;

namespace {

/// Rows that are not worth cutting.
constexpr std::int64_t kShortStretch = 256;

}  // namespace

Experts::Experts(std::unique_ptr<Router> router, Weights weights, std::unique_ptr<Mlp> shared,
                 ExpertDivision division)
    : Product(weights.up->shape[1]),
      router_(std::move(router)),
      weights_(std::move(weights)),
      shared_(std::move(shared)),
      division_(std::move(division)) {}

Tensor Experts::valid(const Tensor& x_TD, Ctx& ctx) const {
  const auto [index, count] = division_.tokens;
  if (count == 1) return x_TD;
  const std::int64_t own = tokens_per_rank(ctx.batch.tokens(), count);
  return x_TD.slice(0, 0, std::clamp<std::int64_t>(ctx.batch.tokens() - own * index, 0, own));
}

Tensor Experts::padded(const Tensor& x_TD, std::int64_t rows, Ctx& ctx) const {
  if (x_TD.size(0) == rows) return x_TD;
  const Tensor whole = ctx.activation({rows, x_TD.size(1)}, x_TD.dtype());
  ops::copy(x_TD, whole.slice(0, 0, x_TD.size(0)), ctx.stream);
  ops::fill(whole.slice(0, x_TD.size(0), rows), 0.0, ctx.stream);
  return whole;
}

Experts::Order Experts::order_of(const Routing& routing, Ctx& ctx) const {
  const Shape choices = routing.experts_TK.shape();
  Order order{.offsets_E1 = ctx.activation({router_->experts() + 1}, DType::i32),
              .token_R = ctx.activation({choices.count()}, DType::i32),
              .row_TK = ctx.activation(choices, DType::i32)};
  ops::order_by_expert(routing.experts_TK, order.offsets_E1, order.token_R, order.row_TK,
                       ctx.stream);
  return order;
}

ExpertExchange::Decision Experts::decision(const Order& order, Saved& saved, Ctx& ctx) const {
  if (saved.has(kCounts)) return {saved.get(kCounts), saved.get(kPlan)};
  ExpertExchange::Decision made =
      division_.exchange->decide(order.offsets_E1, order.token_R.count(), ctx);
  if (ctx.keeps_dear()) {
    saved.put(kCounts, made.counts);
    saved.put(kPlan, made.plan);
  }
  return made;
}

Experts::Places Experts::places_of(const Order& order, Saved& saved, Pass pass, Ctx& ctx) const {
  const std::int64_t rows = order.token_R.count();
  Places places{.pieces = {{0, rows, order.offsets_E1}},
                .experts = router_->experts(),
                .token_R = order.token_R,
                .row_TK = order.row_TK};
  if (!division_.exchange) {
    cut_in_stretches(places, ctx);
    return places;
  }
  const ExpertExchange::Decision made = decision(order, saved, ctx);
  const ExchangePlan plan = ExpertExchange::plan_of(made);
  auto shards = std::make_unique<ShardedWeights>(division_.exchange->ranks(), plan);
  if (shards->are_gathered()) places.shards = std::move(shards);
  if (plan.r == 0) return places;
  places.ways = std::make_unique<ExpertExchange::Ways>(division_.exchange->ways(
      made, pass == Pass::forward ? plan.degree_forward : plan.degree_backward, rows, ctx));
  places.pieces.clear();
  for (const ExpertExchange::Piece& piece : places.ways->pieces) {
    places.pieces.push_back({piece.begin, piece.end, piece.offsets_O1, &piece});
  }
  places.experts = experts();
  if (places.ways->degree > 1) take_in_pieces(order, places, ctx);
  return places;
}

void Experts::take_in_pieces(const Order& order, Places& places, Ctx& ctx) const {
  places.token_R = ctx.activation(order.token_R.shape(), DType::i32);
  places.row_TK = ctx.activation(order.row_TK.shape(), DType::i32);
  ops::pick_numbers(order.token_R, places.ways->row_of_R, places.token_R, ctx.stream);
  ops::pick_numbers(places.ways->piece_row_R, order.row_TK, places.row_TK, ctx.stream);
}

void Experts::cut_in_stretches(Places& places, Ctx& ctx) {
  // Not on a GPU: offsets stay there, and what it keeps between two sums has few bits.
  if (ctx.stream.device().kind != Device::Kind::cpu) return;
  const Places::Piece whole = places.pieces.front();
  const std::int64_t most = std::max(places.row_TK.size(0), kShortStretch),
                     experts = places.experts;
  if (whole.end <= most) return;
  places.room = most;
  places.pieces.clear();
  // A stretch's begin with zero, so there is one more for each.
  const Tensor offsets = ctx.activation({2 * experts}, DType::i32);
  if (ctx.stream.is_dry()) {
    for (std::int64_t begin = 0; begin < whole.end; begin += most) {
      places.pieces.push_back(
          {begin, std::min(begin + most, whole.end), offsets.slice(0, 0, experts + 1)});
    }
    return;
  }
  const auto ends = whole.offsets.host<std::int32_t>().subspan(1);
  const auto relative = offsets.host<std::int32_t>();
  std::int64_t begin = 0, first = 0, at = 0;
  const auto cut = [&](std::int64_t behind) {
    const std::int64_t count = behind - first, end = ends[static_cast<std::size_t>(behind - 1)];
    relative[static_cast<std::size_t>(at)] = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      relative[static_cast<std::size_t>(at + 1 + i)] =
          static_cast<std::int32_t>(ends[static_cast<std::size_t>(first + i)] - begin);
    }
    places.pieces.push_back({begin, end, offsets.slice(0, at, at + count + 1), nullptr, first});
    begin = end;
    first = behind;
    at += count + 1;
  };
  for (std::int64_t e = 1; e < experts; ++e) {
    if (ends[static_cast<std::size_t>(e)] - begin > most) cut(e);
  }
  cut(experts);
}

Tensor Experts::room_for(const Places::Piece& piece, std::int64_t width, DType dtype,
                         const Places& places, Ctx& ctx) {
  const std::int64_t rows = piece.rows();
  return ctx.activation({std::max(rows, places.room), width}, dtype).slice(0, 0, rows);
}

Tensor Experts::rows_of(const Tensor& x_TD, const Places& places, Ctx& ctx) {
  Tensor rows_RD = ctx.activation({places.token_R.count(), x_TD.size(1)}, x_TD.dtype());
  ops::spread_rows(x_TD, places.row_TK, rows_RD, ctx.stream);
  return rows_RD;
}

Experts::PieceRows Experts::slices_of(const Tensor& rows) {
  return [rows](const Places::Piece& piece) { return rows.slice(0, piece.begin, piece.end); };
}

Experts::PieceRows Experts::rows_by_piece(const Tensor& x_TD, const Places& places, Ctx& ctx) {
  return [x_TD, &places, &ctx](const Places::Piece& piece) {
    if (places.pieces.size() == 1) return rows_of(x_TD, places, ctx);
    Tensor rows_RD = room_for(piece, x_TD.size(1), x_TD.dtype(), places, ctx);
    ops::embedding_forward(places.token_R.slice(0, piece.begin, piece.end), x_TD, rows_RD,
                           ctx.stream);
    return rows_RD;
  };
}

Tensor Experts::rows_of_choices(const Tensor& values_TK, const Places& places, Ctx& ctx) const {
  // Choices in the order of their rows: each row is an expert that one token chooses.
  const std::int64_t rows = values_TK.count();
  const Tensor offsets = ctx.workspace({rows + 1}, DType::i32),
               choice_R = ctx.workspace({rows}, DType::i32),
               row = ctx.workspace({rows, 1}, DType::i32);
  ops::order_by_expert(places.row_TK.view({rows, 1}), offsets, choice_R, row, ctx.stream);
  Tensor values_R1 = ctx.activation({rows, 1}, values_TK.dtype());
  ops::embedding_forward(choice_R, values_TK.view({rows, 1}), values_R1, ctx.stream);
  return values_R1;
}

Tensor Experts::choices_of_rows(const Tensor& values_R1, const Places& places, Ctx& ctx) const {
  Tensor values_TK = ctx.activation(places.row_TK.shape(), values_R1.dtype());
  const std::int64_t choices = values_TK.count();
  ops::embedding_forward(places.row_TK.view({choices}), values_R1, values_TK.view({choices, 1}),
                         ctx.stream);
  return values_TK;
}

Tensor Experts::by_expert(const Tensor& stacked, const Parameter& parameter,
                          const Places& places) const {
  return &parameter == weights_.up.get() ? stacked.view({places.experts, 2 * width(places), in()})
                                         : stacked.view({places.experts, in(), width(places)});
}

Tensor Experts::gathered(const Parameter& parameter, const Places& places, Ctx& ctx) const {
  return by_expert(places.shards ? places.shards->gather(parameter.value, blocks(parameter), ctx)
                                 : parameter.value,
                   parameter, places);
}

Experts::Inside Experts::begin_inside(const Order& order, const Places& places, DType dtype,
                                      Saved& saved, Ctx& ctx) const {
  Inside inside{.gate_up = ctx.activation({places.rows(), 2 * width(places)}, dtype),
                .up = gathered(*weights_.up, places, ctx)};
  if (ctx.keeps_all()) {
    saved.put(kInside, inside.gate_up);
    saved.put(kOffsets, order.offsets_E1);
    saved.put(kTokens, order.token_R);
    saved.put(kRows, order.row_TK);
  }
  return inside;
}

void Experts::fill(Inside& inside, const Places& places, std::size_t piece, const Tensor& rows,
                   Ctx& ctx) const {
  const Places::Piece& own = places.pieces[piece];
  ops::grouped_gemm(rows, own.of(inside.up), Transpose::yes, own.offsets,
                    inside.gate_up.slice(0, own.begin, own.end), ctx.stream);
  if (piece + 1 == places.pieces.size()) inside.up = {};
}

void Experts::fill_all(Inside& inside, const Tensor& x_TD, const Places& places, Ctx& ctx) const {
  const PieceRows rows = rows_by_piece(x_TD, places, ctx);
  for (std::size_t piece = 0; piece < places.pieces.size(); ++piece) {
    fill(inside, places, piece, rows(places.pieces[piece]), ctx);
  }
}

Tensor Experts::combined(const PieceRows& rows, const Places& places, const Tensor& weights_TK,
                         Tensor sum_TD, std::int64_t tokens, DType dtype, Ctx& ctx) const {
  const std::vector<Places::Piece> home = {{0, places.token_R.count()}};
  const std::vector<Places::Piece>& pieces = places.ways ? home : places.pieces;
  for (const Places::Piece& piece : pieces) {
    Tensor row_TK = places.row_TK;
    if (pieces.size() > 1) {
      row_TK = ctx.activation(row_TK.shape(), DType::i32);
      ops::held_rows(places.row_TK, piece.begin, piece.end - piece.begin, row_TK, ctx.stream);
    }
    const Tensor made = rows(piece), y_TD = ctx.activation({tokens, in()}, dtype);
    ops::combine_rows(made, row_TK, weights_TK, sum_TD, y_TD, ctx.stream);
    sum_TD = y_TD;
  }
  return sum_TD;
}

void Experts::keep_input(const Tensor& rows, const Places& places, Saved& saved, Ctx& ctx) const {
  if (ctx.keeps_all() && !places.ways->plan.sends_again) saved.put(kInputRows, rows);
}

Experts::Order Experts::saved_order(const Saved& saved) const {
  return {
      .offsets_E1 = saved.get(kOffsets), .token_R = saved.get(kTokens), .row_TK = saved.get(kRows)};
}

void Experts::forget(Saved& saved) const {
  for (const int slot : {kOffsets, kTokens, kRows}) saved.take(slot);
  if (!division_.exchange) return;
  for (const int slot : {kCounts, kPlan}) saved.take(slot);
}

Tensor Experts::hooked(ExpertPlace place, const Tensor& x_TD, Ctx& ctx) const {
  const bool has_hook = division_.exchange && division_.exchange->ranks().hook;
  return has_hook ? division_.exchange->ranks().hook->at(place, x_TD, ctx) : x_TD;
}

Tensor Experts::multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = x_TD.size(0);
  x_TD = hooked(ExpertPlace::start, valid(x_TD, ctx), ctx);
  const Routing routing = router_->route(x_TD, saved.child(kRouter), ctx);
  const Order order = order_of(routing, ctx);
  const bool decides = division_.exchange && !saved.has(kCounts);
  const Places places = places_of(order, saved, Pass::forward, ctx);
  const auto begun = std::chrono::steady_clock::now();
  Inside inside = begin_inside(order, places, x_TD.dtype(), saved, ctx);
  Tensor down;  // where several pieces travel, before the first: the way is for their rows then
  if (places.ways && places.pieces.size() > 1) down = gathered(*weights_.down, places, ctx);
  const auto outputs = [&](const Places::Piece& piece, Tensor rows) {
    const Tensor y = room_for(piece, width(places), x_TD.dtype(), places, ctx);
    ops::grouped_swiglu(rows, piece.of(inside.up), piece.offsets,
                        inside.gate_up.slice(0, piece.begin, piece.end), y, ctx.stream);
    rows = {};
    if (&piece == &places.pieces.back()) inside = {};
    if (!down.defined()) down = gathered(*weights_.down, places, ctx);
    Tensor made = room_for(piece, in(), x_TD.dtype(), places, ctx);
    ops::grouped_gemm(y, piece.of(down), Transpose::yes, piece.offsets, made, ctx.stream);
    return made;
  };
  Tensor out;
  if (places.ways) {
    const auto expert = [&](std::size_t piece, const std::vector<Tensor>& arrived) {
      return PassWalk::Loads{{outputs(places.pieces[piece], arrived.front())}};
    };
    const PassWalk::Rows rows = PassWalk(*division_.exchange, *places.ways, ctx)
                                    .run({{rows_of(x_TD, places, ctx)}}, true, {.expert = expert});
    keep_input(rows.arrived_N.front(), places, saved, ctx);
    out = rows.home_R.front();
  } else if (places.pieces.size() == 1) {
    out = outputs(places.pieces.front(), rows_of(x_TD, places, ctx));
  }
  if (out.defined()) down = {};
  if (decides && division_.exchange->ranks().choice->learns()) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
    division_.exchange->ranks().choice->took(taken.count());
  }
  Tensor addend;
  if (addend_TD.defined()) addend = valid(addend_TD, ctx);
  if (shared_) addend = shared_->multiply(x_TD, addend, saved.child(kShared), ctx);
  const PieceRows rows = rows_by_piece(x_TD, places, ctx);
  const auto made = [&](const Places::Piece& piece) {
    return out.defined() ? std::exchange(out, {}) : outputs(piece, rows(piece));
  };
  const Tensor y_TD = combined(made, places, routing.weights_TK, std::move(addend), x_TD.size(0),
                               x_TD.dtype(), ctx);
  return padded(hooked(ExpertPlace::end, y_TD, ctx), tokens, ctx);
}

Tensor Experts::multiply_of(const Tensor& x_TD, const InputOf& input_of, const Tensor& addend_TD,
                            Saved& saved, Ctx& ctx) {
  if (!division_.exchange || ctx.rows == nullptr || !ctx.rows->stays()) {
    return Product::multiply_of(x_TD, input_of, addend_TD, saved, ctx);
  }
  HEDDLE_CHECK(addend_TD.bytes() == x_TD.bytes() && router_->slots() == 1 &&
                   division_.exchange->ranks().etp->size() == 1,
               "rows that cannot stay with their experts");
  const Routing routing = router_->route(input_of(x_TD), saved.child(kRouter), ctx);
  const StayedRows stayed = stay_with_experts(x_TD, routing, router_->experts(),
                                              *division_.exchange->ranks().ep, *ctx.rows, ctx);
  const std::int64_t rows = stayed.x_ND.size(0), width = this->width();
  const Tensor input_ND = input_of(stayed.x_ND);
  const Tensor gate_up = ctx.activation({rows, 2 * width}, x_TD.dtype()),
               y = ctx.activation({rows, width}, x_TD.dtype()),
               out_ND = ctx.activation({rows, in()}, x_TD.dtype());
  ops::grouped_swiglu(input_ND, weights_.up->value.view({experts(), 2 * width, in()}),
                      stayed.offsets_O1, gate_up, y, ctx.stream);
  ops::grouped_gemm(y, weights_.down->value.view({experts(), in(), width}), Transpose::yes,
                    stayed.offsets_O1, out_ND, ctx.stream);
  Tensor addend_ND = stayed.x_ND;
  if (shared_) addend_ND = shared_->multiply(input_ND, addend_ND, saved.child(kShared), ctx);
  const Tensor y_ND = ctx.activation(out_ND.shape(), out_ND.dtype());
  ops::combine_rows(out_ND, stayed.each_N1, stayed.weights_N1, addend_ND, y_ND, ctx.stream);
  return y_ND;
}

void Experts::prepare_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor x = hooked(ExpertPlace::start, valid(x_TD, ctx), ctx);
  const Order order = order_of(router_->route(x, saved.child(kRouter), ctx), ctx);
  const Places places = places_of(order, saved, Pass::forward, ctx);
  Inside inside = begin_inside(order, places, x.dtype(), saved, ctx);
  if (places.ways) {
    const auto expert = [&](std::size_t piece, const std::vector<Tensor>& arrived) {
      fill(inside, places, piece, arrived.front(), ctx);
      return PassWalk::Loads{};
    };
    const PassWalk::Rows rows = PassWalk(*division_.exchange, *places.ways, ctx)
                                    .run({{rows_of(x, places, ctx)}}, false, {.expert = expert});
    keep_input(rows.arrived_N.front(), places, saved, ctx);
  } else {
    fill_all(inside, x, places, ctx);
  }
  if (shared_) shared_->prepare_given(x, saved.child(kShared), ctx);
}

Tensor Experts::as_in_backward(Tensor rows, const Order& order, const Places& places, Saved& saved,
                               Ctx& ctx) const {
  if (!places.ways || places.ways->plan.degree_forward == places.ways->degree) return rows;
  const Places kept = places_of(order, saved, Pass::forward, ctx);
  const Tensor index = ExpertExchange::reordered(*kept.ways, *places.ways, ctx);
  Tensor made = ctx.activation(rows.shape(), rows.dtype());
  ops::embedding_forward(index, rows, made, ctx.stream);
  return made;
}

void Experts::differentiate(const Tensor& dy_TD, const Tensor& x_TD, const Order& order,
                            const Places& places, Middle& middle,
                            const std::function<void()>& weights, Saved& saved, Ctx& ctx) const {
  middle.dgate_up = as_in_backward(saved.take(kInside), order, places, saved, ctx);
  const Tensor weights_TK = router_->routing(saved.child(kRouter)).weights_TK;
  middle.y = ctx.activation({places.rows(), width(places)}, dy_TD.dtype());
  Tensor down = gathered(*weights_.down, places, ctx);
  if (!places.ways) {
    middle.dweights_TK = ctx.activation(weights_TK.shape(), weights_TK.dtype());
    const Tensor unweighted = ctx.activation(middle.y.shape(), dy_TD.dtype());
    const PieceRows rows_of_piece = rows_by_piece(dy_TD, places, ctx);
    if (places.pieces.size() == 1) {
      const Places::Piece& piece = places.pieces.front();
      middle.dy = rows_of_piece(piece);
      return ops::grouped_swiglu_backward(middle.dy, piece.of(down), piece.offsets, middle.dgate_up,
                                          places.row_TK, weights_TK, unweighted, middle.dgate_up,
                                          middle.y, middle.dweights_TK, ctx.stream);
    }
    for (const Places::Piece& piece : places.pieces) {
      ops::grouped_gemm(rows_of_piece(piece), piece.of(down), Transpose::no, piece.offsets,
                        unweighted.slice(0, piece.begin, piece.end), ctx.stream);
    }
    return ops::expert_swiglu_backward(unweighted, middle.dgate_up, places.row_TK, weights_TK,
                                       middle.dgate_up, middle.y, middle.dweights_TK, ctx.stream);
  }
  Tensor up;  // as down in forward
  if (places.pieces.size() > 1) up = gathered(*weights_.up, places, ctx);
  const auto expert = [&](std::size_t index, const std::vector<Tensor>& arrived) {
    const Places::Piece& piece = places.pieces[index];
    const Tensor dweights = ctx.activation(arrived[0].shape(), weights_TK.dtype()),
                 inside = middle.dgate_up.slice(0, piece.begin, piece.end),
                 unweighted = room_for(piece, width(places), dy_TD.dtype(), places, ctx);
    ops::grouped_swiglu_backward(arrived[1], piece.of(down), piece.offsets, inside,
                                 piece.way->each_N1, arrived[0], unweighted, inside,
                                 middle.y.slice(0, piece.begin, piece.end), dweights, ctx.stream);
    if (index + 1 == places.pieces.size()) down = {};
    if (!up.defined()) up = gathered(*weights_.up, places, ctx);
    return PassWalk::Loads{{dweights, ExpertExchange::Content::numbers},
                           {input_rows_grad(middle.dgate_up, up, piece, places, ctx)}};
  };
  const auto take = [&](const std::vector<Tensor>& arrived_N) {
    middle.dy = arrived_N[1];
    if (places.ways->plan.sends_again) saved.put(kInputRows, arrived_N[2]);
  };
  PassWalk::Computing computing{.expert = expert, .idle = ctx.idle};
  if (weights) {
    computing.weights = [&](const std::vector<Tensor>& arrived_N) {
      take(arrived_N);
      weights();
    };
  }
  PassWalk::Loads there = {
      {rows_of_choices(weights_TK, places, ctx), ExpertExchange::Content::numbers},
      {rows_of(dy_TD, places, ctx)}};
  if (places.ways->plan.sends_again) there.push_back({rows_of(x_TD, places, ctx)});
  const PassWalk::Rows rows =
      PassWalk(*division_.exchange, *places.ways, ctx).run(std::move(there), true, computing);
  if (ctx.idle != nullptr) ctx.idle->begin_behind_experts(ctx.stream);
  if (!weights) take(rows.arrived_N);
  middle.dweights_TK = choices_of_rows(rows.home_R[0], places, ctx);
  middle.dx_R = rows.home_R[1];
}

Tensor Experts::input_rows_grad(const Tensor& dgate_up, const Tensor& up,
                                const Places::Piece& piece, const Places& places, Ctx& ctx) const {
  Tensor made = room_for(piece, in(), dgate_up.dtype(), places, ctx);
  ops::grouped_gemm(dgate_up.slice(0, piece.begin, piece.end), piece.of(up), Transpose::no,
                    piece.offsets, made, ctx.stream);
  return made;
}

Tensor Experts::input_grad(Middle& middle, const Places& places, const Tensor& shared_dx_TD,
                           Saved& saved, Ctx& ctx) {
  Tensor of_router_TD =
      router_->backward_input(middle.dweights_TK, shared_dx_TD, saved.child(kRouter), ctx);
  Tensor up;
  if (!places.ways) up = gathered(*weights_.up, places, ctx);
  const auto rows = [&](const Places::Piece& piece) {
    return places.ways ? std::exchange(middle.dx_R, {})
                       : input_rows_grad(middle.dgate_up, up, piece, places, ctx);
  };
  const std::int64_t tokens = of_router_TD.size(0);
  const DType dtype = of_router_TD.dtype();
  const Tensor dx_TD = combined(rows, places, {}, std::move(of_router_TD), tokens, dtype, ctx);
  return hooked(ExpertPlace::end, dx_TD, ctx);
}

Experts::PieceRows Experts::rows_again(const Tensor& x_TD, const Order& order, const Places& places,
                                       Saved& saved, Ctx& ctx) const {
  if (!places.ways) return rows_by_piece(x_TD, places, ctx);
  const Tensor rows = saved.take(kInputRows);
  return slices_of(places.ways->plan.sends_again ? rows
                                                 : as_in_backward(rows, order, places, saved, ctx));
}

void Experts::add_grads(Parameter& parameter, const PieceRows& dy, const PieceRows& x,
                        const Places& places, Ctx& ctx) const {
  if (!parameter.trains) return;
  Tensor whole;  // of what was gathered
  if (places.shards) {
    const std::int64_t rest = places.shards->shards() * parameter.shape.count() / experts();
    whole = ctx.workspace({places.experts * rest}, parameter.grad.dtype());
  }
  const Tensor grads = by_expert(whole.defined() ? whole : parameter.grad, parameter, places);
  const bool are_of_own_experts = places.room > 0;  // else all pieces add to all experts
  double beta = whole.defined() ? 0.0 : parameter.claim_grad();
  for (const Places::Piece& piece : places.pieces) {
    ops::grouped_gemm_weight(dy(piece), x(piece), piece.offsets, beta, piece.of(grads), ctx.stream);
    if (!are_of_own_experts) beta = 1.0;
  }
  if (!whole.defined()) return;
  places.shards->scatter(whole, blocks(parameter), parameter.claim_grad(), parameter.grad, ctx);
}

Tensor Experts::backward_input_given(const Tensor& dy_TD, const MakeInput& input, Saved& saved,
                                     Ctx& ctx) {
  const Tensor own_dy_TD = hooked(ExpertPlace::start, valid(dy_TD, ctx), ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, Pass::backward, ctx);
  Middle middle;
  Tensor x_TD;
  if (sends_again(places)) x_TD = valid(input(), ctx);
  differentiate(own_dy_TD, x_TD, order, places, middle, {}, saved, ctx);
  if (!places.ways) middle.dy = {};  // is gathered once more in W
  Tensor shared_dx_TD;
  if (shared_) {
    shared_dx_TD = shared_->backward_input_given(
        own_dy_TD, [&] { return x_TD.defined() ? x_TD : valid(input(), ctx); },
        saved.child(kShared), ctx);
  }
  const Tensor dx_TD = input_grad(middle, places, shared_dx_TD, saved, ctx);
  saved.put(kOutputGrad, places.ways ? middle.dy : own_dy_TD);
  saved.put(kInside, middle.dgate_up);
  saved.put(kDownInput, middle.y);
  return padded(dx_TD, dy_TD.size(0), ctx);
}

void Experts::backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor x = valid(x_TD, ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, Pass::backward, ctx);
  {
    const Tensor dy = saved.take(kOutputGrad);
    add_grads(*weights_.down, places.ways ? slices_of(dy) : rows_by_piece(dy, places, ctx),
              slices_of(saved.take(kDownInput)), places, ctx);
  }
  if (shared_) shared_->backward_weight_given(x, saved.child(kShared), ctx);
  const Tensor dgate_up = saved.take(kInside);
  add_grads(*weights_.up, slices_of(dgate_up), rows_again(x, order, places, saved, ctx), places,
            ctx);
  router_->backward_weight(x, saved.child(kRouter), ctx);
  forget(saved);
}

Tensor Experts::backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = dy_TD.size(0);
  dy_TD = hooked(ExpertPlace::start, valid(dy_TD, ctx), ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, Pass::backward, ctx);
  Middle middle;
  const auto add_down = [&] {
    const Tensor dy = std::exchange(middle.dy, {}), y = std::exchange(middle.y, {});
    add_grads(*weights_.down, dy.defined() ? slices_of(dy) : rows_by_piece(dy_TD, places, ctx),
              slices_of(y), places, ctx);
  };
  const auto add_up = [&](const Tensor& x) {
    add_grads(*weights_.up, slices_of(middle.dgate_up), rows_again(x, order, places, saved, ctx),
              places, ctx);
  };
  // While rows are on their way home, unless weights would go the same way.
  const bool is_meanwhile = places.ways && !places.shards;
  std::function<void()> weights;
  if (is_meanwhile) {
    weights = [&] {
      add_down();
      add_up({});
    };
  }
  Tensor x_TD;
  if (sends_again(places)) x_TD = valid(input(), ctx);
  differentiate(dy_TD, x_TD, order, places, middle, weights, saved, ctx);
  if (!is_meanwhile) add_down();
  if (!x_TD.defined()) x_TD = valid(input(), ctx);
  Tensor shared_dx_TD;
  if (shared_) {
    shared_dx_TD = shared_->backward_given(
        dy_TD, [&] { return x_TD; }, saved.child(kShared), ctx);
  }
  dy_TD = {};
  if (!is_meanwhile) add_up(x_TD);
  const Tensor dx_TD = input_grad(middle, places, shared_dx_TD, saved, ctx);
  router_->backward_weight(x_TD, saved.child(kRouter), ctx);
  forget(saved);
  return padded(dx_TD, tokens, ctx);
}

void Experts::visit(const ParamVisitor& visitor) {
  router_->visit(visitor);
  visitor(*weights_.up);
  visitor(*weights_.down);
  if (shared_) shared_->visit(visitor);
}

Cost Experts::cost(const CostShape& whole) const {
  // Of own tokens. With experts on other ranks, as many rows come as go, and more where each goes
  // to several.
  CostShape shape = whole;
  if (division_.tokens.count > 1) {
    const std::int64_t own = tokens_per_rank(whole.tokens(), division_.tokens.count);
    shape.context = nullptr;
    shape.sequences = 1;
    shape.seq_len = std::clamp<std::int64_t>(whole.tokens() - own * division_.tokens.index, 0, own);
  }
  const std::int64_t own_rows = shape.tokens() * router_->slots();
  std::int64_t rows = own_rows, width = this->width(), experts = this->experts();
  if (division_.exchange) {
    const ExchangePlan plan = division_.exchange->ranks().choice->usual();
    const ShardedWeights shards(division_.exchange->ranks(), plan);
    rows *= std::max(1, plan.r);
    if (plan.r > 0) rows = planned_rows(rows);
    width *= shards.shards();
    if (plan.r == 0) experts = router_->experts();
  }
  const auto D = static_cast<double>(in()), F = static_cast<double>(width);
  const auto T = static_cast<double>(shape.tokens()), R = static_cast<double>(rows),
             E = static_cast<double>(experts);
  const WeightProduct up{.rows = R, .in = D, .out = 2.0 * F, .groups = E},
      down{.rows = R, .in = F, .out = D, .groups = E};
  const double flops = 2.0 * R * (up.in * up.out + down.in * down.out);
  const auto element = size_of(shape.dtype), index = size_of(DType::i32);
  const auto count = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  Cost cost{flops, flops, flops};
  cost.products = {up, down};
  cost.kept_input_bytes = shape.bytes(in());
  cost.saved_bytes = cost.kept_input_bytes + count(rows) * 2 * count(width) * element +
                     count(own_rows) * 2 * index + count(router_->experts() + 1) * index;
  // Rows are gathered, and summed up again; SwiGLU.
  const auto bytes = static_cast<double>(element);
  cost.touched_bytes_f = bytes * (R * (3.0 * D + 3.0 * F) + T * D);
  cost.touched_bytes_b = bytes * (R * (7.0 * D + 8.0 * F) + 2.0 * T * D);
  cost += router_->cost(shape);
  if (shared_) {
    const Cost shared = shared_->cost(shape);
    cost += shared;
    cost.saved_bytes -= shared.kept_input_bytes;  // one x
  }
  cost.output_products = {down};
  if (division_.exchange) add_exchange(own_rows, shape, cost);
  return cost;
}

std::int64_t Experts::planned_rows(std::int64_t even) const {
  return static_cast<std::int64_t>(
      std::ceil(division_.exchange->ranks().planned_rows * static_cast<double>(even)));
}

void Experts::add_exchange(std::int64_t rows, const CostShape& shape, Cost& cost) const {
  using Content = ExpertExchange::Content;
  const ExpertExchange& exchange = *division_.exchange;
  const ExchangePlan plan = exchange.ranks().choice->usual();
  const ShardedWeights shards(exchange.ranks(), plan);
  const DType dtype = shape.dtype, wide = statistics_of(dtype);
  const auto bytes_of = [&](const Parameter& parameter) {
    return parameter.shape.count() * static_cast<std::int64_t>(size_of(dtype));
  };
  const auto add = [](std::vector<LayerCall>& to, std::vector<LayerCall> calls, bool are_dear) {
    for (LayerCall& call : calls) {
      call.is_dear |= are_dear;
      to.push_back(call);
    }
  };
  const auto counts = exchange.counts_calls();
  const auto kept = static_cast<std::size_t>(counts.back().bytes) + ExpertExchange::kPlanBytes;
  cost.saved_bytes += kept;
  cost.dear_bytes += kept;
  add(cost.calls_f, counts, true);
  const bool spares_outputs = division_.ends_branch;  // a second forward does not want them
  add(cost.calls_f, shards.gather_calls(bytes_of(*weights_.up)), false);
  if (plan.r > 0) {
    add(cost.calls_f,
        exchange.calls_there(plan, plan.degree_forward, rows, in(), dtype, Content::rows), false);
  }
  add(cost.calls_f, shards.gather_calls(bytes_of(*weights_.down)), spares_outputs);
  if (plan.r > 0) {
    const std::int64_t came = planned_rows(rows * plan.r);
    const std::size_t came_bytes = static_cast<std::size_t>(came * in()) * size_of(dtype);
    if (!plan.sends_again) cost.saved_bytes += came_bytes;
    // Going backward in one piece: rows as they leave, arrive, are made and go home, and the inside
    // of the experts once more.
    cost.working_bytes =
        static_cast<std::size_t>((2 * came + 2 * rows) * in() + came * width() * shards.shards()) *
        size_of(dtype);
    if (plan.sends_again) {
      cost.working_bytes += came_bytes + static_cast<std::size_t>(rows * in()) * size_of(dtype);
    }
    add(cost.calls_f,
        exchange.calls_back(plan, plan.degree_forward, rows, in(), dtype, Content::rows),
        spares_outputs);
    const int degree = plan.degree_backward;
    add(cost.calls_b, exchange.calls_there(plan, degree, rows, 1, wide, Content::numbers), false);
    for (int load = 0; load < (plan.sends_again ? 2 : 1); ++load) {
      add(cost.calls_b, exchange.calls_there(plan, degree, rows, in(), dtype, Content::rows),
          false);
    }
    add(cost.calls_b, exchange.calls_back(plan, degree, rows, 1, wide, Content::numbers), false);
    add(cost.calls_b, exchange.calls_back(plan, degree, rows, in(), dtype, Content::rows), false);
  }
  for (const Parameter* const parameter : {weights_.down.get(), weights_.up.get()}) {
    add(cost.calls_b, shards.gather_calls(bytes_of(*parameter)), false);
    const std::int64_t grad_bytes =
        parameter->shape.count() * static_cast<std::int64_t>(size_of(wide));
    add(cost.calls_b, shards.scatter_calls(grad_bytes), false);
  }
}

}  // namespace heddle
