#include "nn/experts/experts.h"

#include <algorithm>

#include "nn/redistribute.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

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

Experts::Order Experts::order_of(const Routing& routing, Ctx& ctx) const {
  const Shape choices = routing.experts_TK.shape();
  Order order{.offsets_E1 = ctx.activation({router_->experts() + 1}, DType::i32),
              .token_R = ctx.activation({choices.count()}, DType::i32),
              .row_TK = ctx.activation(choices, DType::i32)};
  ops::order_by_expert(routing.experts_TK, order.offsets_E1, order.token_R, order.row_TK,
                       ctx.stream);
  return order;
}

Experts::Places Experts::places_of(const Order& order, Saved& saved, Ctx& ctx) const {
  if (!division_.exchange) return {.offsets = order.offsets_E1};
  Tensor counts;
  if (saved.has(kCounts)) {
    counts = saved.get(kCounts);
  } else {
    counts = division_.exchange->gather_counts(order.offsets_E1, ctx);
    if (ctx.keeps_dear()) saved.put(kCounts, counts);
  }
  Places places;
  places.ways = division_.exchange->ways(counts, order.token_R.count(), ctx);
  places.offsets = places.ways->offsets_O1;
  return places;
}

Tensor Experts::brought(const Tensor& x_TD, const Order& order, const Places& places,
                        Ctx& ctx) const {
  const Tensor rows_RD = ctx.activation({order.token_R.count(), x_TD.size(1)}, x_TD.dtype());
  ops::embedding_forward(order.token_R, x_TD, rows_RD, ctx.stream);
  return places.ways ? division_.exchange->dispatch(rows_RD, *places.ways, ctx) : rows_RD;
}

Tensor Experts::returned(const Tensor& rows, const Places& places, Ctx& ctx) const {
  return places.ways ? division_.exchange->combine(rows, *places.ways, ctx) : rows;
}

Tensor Experts::inside(const Tensor& x_TD, const Order& order, const Places& places, Saved& saved,
                       Ctx& ctx) const {
  const Tensor x = brought(x_TD, order, places, ctx);
  Tensor gate_up = ctx.activation({x.size(0), 2 * width()}, x.dtype());
  ops::grouped_gemm(x, by_expert(weights_.up->value), Transpose::yes, places.offsets, gate_up,
                    ctx.stream);
  if (ctx.keeps_all()) {
    saved.put(kInside, gate_up);
    saved.put(kOffsets, order.offsets_E1);
    saved.put(kTokens, order.token_R);
    saved.put(kRows, order.row_TK);
    if (places.ways) saved.put(kInputRows, x);
  }
  return gate_up;
}

Experts::Order Experts::saved_order(const Saved& saved) const {
  return {
      .offsets_E1 = saved.get(kOffsets), .token_R = saved.get(kTokens), .row_TK = saved.get(kRows)};
}

void Experts::forget(Saved& saved) const {
  for (const int slot : {kOffsets, kTokens, kRows}) saved.take(slot);
  if (division_.exchange) saved.take(kCounts);
}

Tensor Experts::multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = x_TD.size(0);
  x_TD = valid(x_TD, ctx);
  const Routing routing = router_->route(x_TD, saved.child(kRouter), ctx);
  const Order order = order_of(routing, ctx);
  const Places places = places_of(order, saved, ctx);
  Tensor gate_up = inside(x_TD, order, places, saved, ctx);
  Tensor y = ctx.activation({gate_up.size(0), width()}, x_TD.dtype());
  const auto [gate, up] = ops::halves(gate_up);
  ops::swiglu_forward(gate, up, y, ctx.stream);
  Tensor out = ctx.activation({gate_up.size(0), in()}, x_TD.dtype());
  ops::grouped_gemm(y, by_expert(weights_.down->value), Transpose::yes, places.offsets, out,
                    ctx.stream);
  gate_up = y = {};
  out = returned(out, places, ctx);
  Tensor addend;
  if (addend_TD.defined()) addend = valid(addend_TD, ctx);
  if (shared_) addend = shared_->multiply(x_TD, addend, saved.child(kShared), ctx);
  const Tensor y_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  ops::combine_rows(out, order.row_TK, routing.weights_TK, addend, y_TD, ctx.stream);
  return padded(y_TD, tokens, ctx);
}

void Experts::prepare_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor x = valid(x_TD, ctx);
  const Order order = order_of(router_->route(x, saved.child(kRouter), ctx), ctx);
  inside(x, order, places_of(order, saved, ctx), saved, ctx);
  if (shared_) shared_->prepare_given(x, saved.child(kShared), ctx);
}

Tensor Experts::by_row(const Tensor& values_TK, const Order& order, Ctx& ctx) {
  // Choices in the order of their rows: each row is an expert that one token chooses.
  const std::int64_t rows = values_TK.count();
  const Tensor offsets = ctx.workspace({rows + 1}, DType::i32),
               choice_R = ctx.workspace({rows}, DType::i32),
               row = ctx.workspace({rows, 1}, DType::i32);
  ops::order_by_expert(order.row_TK.view({rows, 1}), offsets, choice_R, row, ctx.stream);
  const Tensor values_R = ctx.activation({rows, 1}, values_TK.dtype());
  ops::embedding_forward(choice_R, values_TK.view({rows, 1}), values_R, ctx.stream);
  return values_R;
}

Experts::Middle Experts::differentiate(const Tensor& dy, const Order& order, const Places& places,
                                       Saved& saved, Ctx& ctx) const {
  const Tensor gate_up = saved.take(kInside);
  const Tensor weights_TK = router_->routing(saved.child(kRouter)).weights_TK;
  Tensor weights = weights_TK, row = order.row_TK;
  if (places.ways) {
    weights = division_.exchange->dispatch(by_row(weights_TK, order, ctx), *places.ways, ctx);
    row = places.ways->each_N1;
  }
  const Shape shape{dy.size(0), width()};
  const Tensor unweighted = ctx.activation(shape, dy.dtype());
  ops::grouped_gemm(dy, by_expert(weights_.down->value), Transpose::no, places.offsets, unweighted,
                    ctx.stream);
  Middle middle{.dgate_up = gate_up,
                .y = ctx.activation(shape, dy.dtype()),
                .dweights_TK = ctx.activation(weights.shape(), weights.dtype())};
  ops::expert_swiglu_backward(unweighted, gate_up, row, weights, middle.dgate_up, middle.y,
                              middle.dweights_TK, ctx.stream);
  if (places.ways) {
    const Tensor dweights_R = returned(middle.dweights_TK, places, ctx);
    middle.dweights_TK = ctx.activation(weights_TK.shape(), weights_TK.dtype());
    ops::embedding_forward(order.row_TK.view({weights_TK.count()}), dweights_R,
                           middle.dweights_TK.view({weights_TK.count(), 1}), ctx.stream);
  }
  return middle;
}

Tensor Experts::input_grad(const Middle& middle, const Order& order, const Places& places,
                           const Tensor& shared_dx_TD, Saved& saved, Ctx& ctx) {
  const Tensor of_router_TD =
      router_->backward_input(middle.dweights_TK, shared_dx_TD, saved.child(kRouter), ctx);
  Tensor dx = ctx.activation({middle.dgate_up.size(0), in()}, of_router_TD.dtype());
  ops::grouped_gemm(middle.dgate_up, by_expert(weights_.up->value), Transpose::no, places.offsets,
                    dx, ctx.stream);
  dx = returned(dx, places, ctx);
  const Tensor dx_TD = ctx.activation(of_router_TD.shape(), of_router_TD.dtype());
  ops::combine_rows(dx, order.row_TK, {}, of_router_TD, dx_TD, ctx.stream);
  return dx_TD;
}

Tensor Experts::rows_again(const Tensor& x_TD, const Order& order, Saved& saved, Ctx& ctx) const {
  return division_.exchange ? saved.take(kInputRows) : brought(x_TD, order, {}, ctx);
}

void Experts::add_grads(Parameter& parameter, const Tensor& dy, const Tensor& x,
                        const Places& places, Ctx& ctx) const {
  ops::grouped_gemm_weight(dy, x, places.offsets, parameter.claim_grad(), by_expert(parameter.grad),
                           ctx.stream);
}

Tensor Experts::backward_input_given(const Tensor& dy_TD, const MakeInput& input, Saved& saved,
                                     Ctx& ctx) {
  const Tensor own_dy_TD = valid(dy_TD, ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, ctx);
  const Tensor dy = brought(own_dy_TD, order, places, ctx);
  const Middle middle = differentiate(dy, order, places, saved, ctx);
  Tensor shared_dx_TD;
  if (shared_) {
    shared_dx_TD = shared_->backward_input_given(
        own_dy_TD, [&] { return valid(input(), ctx); }, saved.child(kShared), ctx);
  }
  const Tensor dx_TD = input_grad(middle, order, places, shared_dx_TD, saved, ctx);
  saved.put(kOutputGrad, places.ways ? dy : own_dy_TD);
  saved.put(kInside, middle.dgate_up);
  saved.put(kDownInput, middle.y);
  return padded(dx_TD, dy_TD.size(0), ctx);
}

void Experts::backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor x = valid(x_TD, ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, ctx);
  Tensor dy = saved.take(kOutputGrad);
  if (!places.ways) dy = brought(dy, order, places, ctx);
  add_grads(*weights_.down, dy, saved.take(kDownInput), places, ctx);
  dy = {};
  if (shared_) shared_->backward_weight_given(x, saved.child(kShared), ctx);
  add_grads(*weights_.up, saved.take(kInside), rows_again(x, order, saved, ctx), places, ctx);
  router_->backward_weight(x, saved.child(kRouter), ctx);
  forget(saved);
}

Tensor Experts::backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = dy_TD.size(0);
  dy_TD = valid(dy_TD, ctx);
  const Order order = saved_order(saved);
  const Places places = places_of(order, saved, ctx);
  Tensor dy = brought(dy_TD, order, places, ctx);
  Middle middle = differentiate(dy, order, places, saved, ctx);
  add_grads(*weights_.down, dy, middle.y, places, ctx);
  dy = middle.y = {};
  const Tensor x_TD = valid(input(), ctx);
  Tensor shared_dx_TD;
  if (shared_) {
    shared_dx_TD = shared_->backward_given(
        dy_TD, [&] { return x_TD; }, saved.child(kShared), ctx);
  }
  dy_TD = {};
  add_grads(*weights_.up, middle.dgate_up, rows_again(x_TD, order, saved, ctx), places, ctx);
  const Tensor dx_TD = input_grad(middle, order, places, shared_dx_TD, saved, ctx);
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
  // Of own tokens. With experts on other ranks, as many rows come as go.
  CostShape shape = whole;
  if (division_.tokens.count > 1) {
    const std::int64_t own = tokens_per_rank(whole.tokens(), division_.tokens.count);
    shape.context = nullptr;
    shape.sequences = 1;
    shape.seq_len = std::clamp<std::int64_t>(whole.tokens() - own * division_.tokens.index, 0, own);
  }
  const auto D = static_cast<double>(in()), F = static_cast<double>(width());
  const std::int64_t rows = shape.tokens() * router_->per_token();
  const auto T = static_cast<double>(shape.tokens()), R = static_cast<double>(rows),
             E = static_cast<double>(experts());
  const WeightProduct up{.rows = R, .in = D, .out = 2.0 * F, .groups = E},
      down{.rows = R, .in = F, .out = D, .groups = E};
  const double flops = 2.0 * R * (up.in * up.out + down.in * down.out);
  const auto element = size_of(shape.dtype), index = size_of(DType::i32);
  const auto count = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  Cost cost{flops, flops, flops};
  cost.products = {up, down};
  cost.kept_input_bytes = shape.bytes(in());
  cost.saved_bytes = cost.kept_input_bytes +
                     count(rows) * (2 * count(width()) * element + 2 * index) +
                     count(router_->experts() + 1) * index;
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
  if (division_.exchange) add_exchange(rows, shape, cost);
  return cost;
}

void Experts::add_exchange(std::int64_t rows, const CostShape& shape, Cost& cost) const {
  const ExpertExchange& exchange = *division_.exchange;
  const LayerCall of_rows = exchange.call(rows, in(), shape.dtype),
                  of_weights = exchange.call(rows, 1, statistics_of(shape.dtype));
  LayerCall of_counts = exchange.counts_call(), of_outputs = of_rows;
  of_counts.is_dear = true;
  of_outputs.is_dear = division_.ends_branch;  // a second forward does not want them
  const auto counts = static_cast<std::size_t>(of_counts.bytes);
  cost.saved_bytes += counts + static_cast<std::size_t>(of_rows.bytes);
  cost.dear_bytes += counts;
  cost.calls_f.insert(cost.calls_f.end(), {of_counts, of_rows, of_outputs});
  cost.calls_b.insert(cost.calls_b.end(), {of_rows, of_weights, of_weights, of_rows});
}

}  // namespace heddle
