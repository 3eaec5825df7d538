#include "nn/experts/experts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "nn/decoded_rows.h"
#include "nn/experts/one_exchange.h"
#include "nn/experts/pass_walk.h"
#include "nn/redistribute.h"
#include "ops/elementwise.h"

namespace heddle {

using ops::Transpose;

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

Tensor Experts::hooked(ExpertPlace place, const Tensor& x_TD, Ctx& ctx) const {
  const bool has_hook = division_.exchange && division_.exchange->ranks().hook;
  return has_hook ? division_.exchange->ranks().hook->at(place, x_TD, ctx) : x_TD;
}

void Experts::keep_input(const Tensor& rows, const Places& places, Saved& saved, Ctx& ctx) const {
  if (ctx.keeps_all() && !places.ways->plan.sends_again) saved.put(kInputRows, rows);
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
  } else if (places.is_undivided()) {
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
  const Tensor y_TD =
      places.rooms ? computed(x_TD, std::move(inside), places, routing.weights_TK, addend, ctx)
                   : combined(made, places, routing.weights_TK, std::move(addend), x_TD.size(0),
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

void Experts::visit(const ParamVisitor& visitor) {
  router_->visit(visitor);
  visitor(*weights_.up);
  visitor(*weights_.down);
  if (shared_) shared_->visit(visitor);
}

}  // namespace heddle
