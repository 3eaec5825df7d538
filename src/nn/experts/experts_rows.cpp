#include <algorithm>
#include <utility>

#include "nn/experts/experts.h"
#include "ops/embedding.h"

namespace heddle {

using ops::Transpose;

namespace {

/// Rows that are not worth cutting.
constexpr std::int64_t kShortStretch = 256;

}  // namespace

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
    if (ctx.stream.device().kind == Device::Kind::cpu) {
      cut_in_stretches(places, ctx);
    } else {
      take_short_rooms(places, pass, ctx);
    }
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
    if (places.is_undivided()) return rows_of(x_TD, places, ctx);
    if (places.rooms) {
      Tensor made = places.rooms->rows(piece.rows(), x_TD.size(1), x_TD.dtype(), ctx);
      ops::spread_rows(x_TD, piece.row_TK, made, ctx.stream);
      return made;
    }
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

}  // namespace heddle
