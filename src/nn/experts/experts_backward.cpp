#include <utility>

#include "nn/experts/experts.h"
#include "nn/experts/pass_walk.h"
#include "ops/embedding.h"

namespace heddle {

using ops::Transpose;

namespace {

/// For the gradient of y without weights, which on a GPU may lie where y will.
Tensor room_beside(const Tensor& y, Ctx& ctx) {
  return ctx.stream.device().kind == Device::Kind::cuda ? y : ctx.activation(y.shape(), y.dtype());
}

}  // namespace

Experts::Order Experts::saved_order(const Saved& saved) const {
  return {
      .offsets_E1 = saved.get(kOffsets), .token_R = saved.get(kTokens), .row_TK = saved.get(kRows)};
}

void Experts::forget(Saved& saved) const {
  for (const int slot : {kOffsets, kTokens, kRows}) saved.take(slot);
  if (!division_.exchange) return;
  for (const int slot : {kCounts, kPlan}) saved.take(slot);
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
  if (places.rooms) return differentiate_stretches(dy_TD, weights_TK, places, middle, ctx);
  middle.y = ctx.activation({places.rows(), width(places)}, dy_TD.dtype());
  Tensor down = gathered(*weights_.down, places, ctx);
  if (!places.ways) {
    middle.dweights_TK = ctx.activation(weights_TK.shape(), weights_TK.dtype());
    const Tensor unweighted = room_beside(middle.y, ctx);
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
                 y = middle.y.slice(0, piece.begin, piece.end);
    ops::grouped_swiglu_backward(arrived[1], piece.of(down), piece.offsets, inside,
                                 piece.way->each_N1, arrived[0], room_beside(y, ctx), inside, y,
                                 dweights, ctx.stream);
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
  if (places.rooms) {
    const ShortRooms::Stretch& stretch =
        middle.y.defined() ? places.rooms->beside_all() : places.rooms->beside_own();
    const Tensor dx_TD = combined_products(middle.dgate_up, {up, Transpose::no}, {}, of_router_TD,
                                           stretch.columns, places, ctx);
    return hooked(ExpertPlace::end, dx_TD, ctx);
  }
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
  const Places places = places_of(order, saved, Pass::halved, ctx);
  Middle middle;
  if (places.rooms) middle.y = places.rooms->insides(places.rows(), dy_TD.dtype(), ctx);
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
  const Places places = places_of(order, saved, Pass::halved, ctx);
  {
    const Tensor dy = saved.take(kOutputGrad), y = saved.take(kDownInput);
    if (places.rooms) {
      add_down_grads(dy, y, places, ctx);
    } else {
      add_grads(*weights_.down, places.ways ? slices_of(dy) : rows_by_piece(dy, places, ctx),
                slices_of(y), places, ctx);
    }
  }
  if (shared_) shared_->backward_weight_given(x, saved.child(kShared), ctx);
  const Tensor dgate_up = saved.take(kInside);
  if (places.rooms) {
    add_up_grads(dgate_up, x, places, ctx);
  } else {
    add_grads(*weights_.up, slices_of(dgate_up), rows_again(x, order, places, saved, ctx), places,
              ctx);
  }
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
    if (places.rooms) return;  // are added stretch by stretch
    const Tensor dy = std::exchange(middle.dy, {}), y = std::exchange(middle.y, {});
    add_grads(*weights_.down, dy.defined() ? slices_of(dy) : rows_by_piece(dy_TD, places, ctx),
              slices_of(y), places, ctx);
  };
  const auto add_up = [&](const Tensor& x) {
    if (places.rooms) return add_up_grads(middle.dgate_up, x, places, ctx);
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

}  // namespace heddle
