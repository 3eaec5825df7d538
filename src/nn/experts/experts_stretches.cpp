#include <algorithm>
#include <utility>

#include "nn/experts/experts.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace heddle {

using ops::Transpose;

namespace {

/// Calls body(begin, end) for every part of a row.
template <class Body>
void for_columns(std::int64_t width, std::int64_t columns, const Body& body) {
  for (std::int64_t begin = 0; begin < width; begin += columns) {
    body(begin, std::min(begin + columns, width));
  }
}

}  // namespace

void Experts::take_short_rooms(Places& places, Pass pass, Ctx& ctx) const {
  const bool is_followed = division_.is_followed && pass != Pass::halved && ctx.keeps_all();
  const ShortRooms rooms(places.row_TK.size(0), places.row_TK.size(1), in(), width(), is_followed);
  if (!rooms.are_needed()) return;
  const Places::Piece whole = places.pieces.front();
  const std::int64_t most =
      pass == Pass::backward ? rooms.beside_own().rows : rooms.beside_all().rows;
  places.rooms.emplace(rooms);
  places.offsets_E1 = whole.offsets;
  places.pieces.clear();
  for (std::int64_t begin = 0; begin < whole.end; begin += most) {
    const std::int64_t end = std::min(begin + most, whole.end);
    Places::Piece piece{begin, end, ctx.activation(whole.offsets.shape(), DType::i32)};
    piece.row_TK = ctx.activation(places.row_TK.shape(), DType::i32);
    ops::held_offsets(whole.offsets, begin, piece.rows(), piece.offsets, ctx.stream);
    ops::held_rows(places.row_TK, begin, piece.rows(), piece.row_TK, ctx.stream);
    places.pieces.push_back(piece);
  }
}

Tensor Experts::combined_products(const Tensor& insides, const ByExpert& by,
                                  const Tensor& weights_TK, const Tensor& addend_TD,
                                  std::int64_t columns, const Places& places, Ctx& ctx) const {
  Tensor y_TD = ctx.activation({places.row_TK.size(0), in()}, insides.dtype());
  for_columns(in(), columns, [&](std::int64_t begin, std::int64_t end) {
    const Tensor made = places.rooms->rows(places.rows(), end - begin, insides.dtype(), ctx);
    const int outputs = by.transpose == Transpose::yes ? 1 : 2;
    ops::grouped_gemm(insides, by.matrices.slice(outputs, begin, end), by.transpose,
                      places.offsets_E1, made, ctx.stream);
    ops::combine_rows(made, places.row_TK, weights_TK,
                      addend_TD.defined() ? addend_TD.slice(1, begin, end) : Tensor(),
                      y_TD.slice(1, begin, end), ctx.stream);
  });
  return y_TD;
}

Tensor Experts::columns_of_rows(const Tensor& x_TC, const Places& places, Ctx& ctx) {
  Tensor rows_RC = places.rooms->rows(places.rows(), x_TC.size(1), x_TC.dtype(), ctx);
  ops::spread_rows(x_TC, places.row_TK, rows_RC, ctx.stream);
  return rows_RC;
}

Tensor Experts::computed(const Tensor& x_TD, Inside inside, const Places& places,
                         const Tensor& weights_TK, const Tensor& addend_TD, Ctx& ctx) const {
  const Tensor y = places.rooms->insides(places.rows(), x_TD.dtype(), ctx);
  const PieceRows rows = rows_by_piece(x_TD, places, ctx);
  for (const Places::Piece& piece : places.pieces) {
    ops::grouped_swiglu(rows(piece), inside.up, piece.offsets,
                        inside.gate_up.slice(0, piece.begin, piece.end),
                        y.slice(0, piece.begin, piece.end), ctx.stream);
  }
  inside = {};
  return combined_products(y, {gathered(*weights_.down, places, ctx), Transpose::yes}, weights_TK,
                           addend_TD, places.rooms->beside_all().columns, places, ctx);
}

void Experts::differentiate_stretches(const Tensor& dy_TD, const Tensor& weights_TK,
                                      const Places& places, Middle& middle, Ctx& ctx) const {
  const Tensor down = gathered(*weights_.down, places, ctx);
  const PieceRows rows = rows_by_piece(dy_TD, places, ctx);
  const bool adds = !middle.y.defined() && weights_.down->trains;
  const double beta = adds ? weights_.down->claim_grad() : 0.0;
  for (const Places::Piece& piece : places.pieces) {
    const Tensor dy = rows(piece), inside = middle.dgate_up.slice(0, piece.begin, piece.end),
                 y = middle.y.defined() ? middle.y.slice(0, piece.begin, piece.end)
                                        : places.rooms->insides(piece.rows(), dy_TD.dtype(), ctx),
                 dweights_TK = ctx.activation(weights_TK.shape(), weights_TK.dtype());
    ops::grouped_swiglu_backward(dy, down, piece.offsets, inside, piece.row_TK, weights_TK, y,
                                 inside, y, dweights_TK, ctx.stream);
    // Those of choices in other stretches are zero.
    if (piece.begin == 0) {
      middle.dweights_TK = dweights_TK;
    } else {
      ops::accumulate(dweights_TK, middle.dweights_TK, ctx.stream);
    }
    if (!adds) continue;
    ops::grouped_gemm_weight_part(dy, y, places.offsets_E1, piece.begin, beta,
                                  by_expert(weights_.down->grad, *weights_.down, places),
                                  ctx.stream);
  }
}

void Experts::add_up_grads(const Tensor& dgate_up, const Tensor& x_TD, const Places& places,
                           Ctx& ctx) const {
  if (!weights_.up->trains) return;
  const Tensor grads = by_expert(weights_.up->grad, *weights_.up, places);
  const double beta = weights_.up->claim_grad();
  for_columns(in(), places.rooms->beside_own().columns, [&](std::int64_t begin, std::int64_t end) {
    const Tensor x = columns_of_rows(x_TD.slice(1, begin, end), places, ctx);
    ops::grouped_gemm_weight(dgate_up, x, places.offsets_E1, beta, grads.slice(2, begin, end),
                             ctx.stream);
  });
}

void Experts::add_down_grads(const Tensor& dy_TD, const Tensor& y, const Places& places,
                             Ctx& ctx) const {
  if (!weights_.down->trains) return;
  const Tensor grads = by_expert(weights_.down->grad, *weights_.down, places);
  const double beta = weights_.down->claim_grad();
  for_columns(in(), places.rooms->beside_all().columns, [&](std::int64_t begin, std::int64_t end) {
    const Tensor dy = columns_of_rows(dy_TD.slice(1, begin, end), places, ctx);
    ops::grouped_gemm_weight(dy, y, places.offsets_E1, beta, grads.slice(1, begin, end),
                             ctx.stream);
  });
}

}  // namespace heddle
