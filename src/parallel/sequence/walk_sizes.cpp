#include "parallel/sequence/walk_sizes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/sequence/piece_parts.h"

namespace heddle {
namespace {

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// Of a piece that begins here: running results are wide, keys as they are.
std::int64_t piece_bytes(const Piece& piece, const ContextShape& shape, DType dtype) {
  const std::int64_t rows = tokens_in(piece.tokens) * piece.heads.count;
  const auto [tensors, statistics] = parts_of(piece.kind);
  const DType held = is_result(piece.kind) ? statistics_of(dtype) : dtype;
  return (tensors * shape.head_dim + statistics) * rows * size(held);
}

/// Of the call that has most queries with windows.
std::int64_t first_key_bytes(const ProgramRound& round) {
  std::int64_t most = 0;
  for (const TileCall& call : round.tiles) {
    if (call.has_window_edge()) most = std::max(most, call.queries.count * size(DType::i32));
  }
  return most;
}

}  // namespace

std::array<std::int64_t, 2> buffer_bytes(const Message& message, const ContextShape& shape,
                                         DType dtype) {
  const auto [values, partials, statistics] = traffic_of(message, shape);
  const DType wide = statistics_of(dtype);
  const std::int64_t rows = values * size(dtype) + partials * size(wide);
  if (message.is_partial || dtype == wide) return {rows + statistics * size(wide), 0};
  return {rows, statistics * size(wide)};
}

std::int64_t workspace_bytes(const ContextProgram& program, const ContextShape& shape,
                             DType dtype) {
  const auto bytes_of = [&](const Transfer& transfer) {
    const auto [rows, statistics] = buffer_bytes(transfer.message, shape, dtype);
    return rows + statistics;
  };
  std::map<int, std::int64_t> pieces;  // that the rank holds for others
  std::int64_t held = 0, most = 0, waiting = 0;
  const auto hold = [&](int piece, std::int64_t bytes) {
    held += bytes - std::exchange(pieces[piece], bytes);
  };
  for (const ProgramRound& round : program.rounds) {
    for (const int piece : round.begins) {
      hold(piece, piece_bytes(program.pieces[static_cast<std::size_t>(piece)], shape, dtype));
    }
    most = std::max(most, held);
    for (const int piece : round.spent) hold(piece, 0);
    std::int64_t moving = waiting + first_key_bytes(round);
    for (const Transfer& transfer : round.receives) {
      moving += bytes_of(transfer);
      const bool is_added =
          transfer.piece < 0 && is_result(piece_kind_of(transfer.message.content));
      if (is_added) waiting += bytes_of(transfer);
    }
    if (round.puts_away) waiting = 0;
    for (auto transfer = round.sends.begin(); transfer != round.sends.end(); ++transfer) {
      const bool is_made = transfer->piece < 0 &&
                           std::none_of(round.sends.begin(), transfer, [&](const Transfer& other) {
                             return carry_the_same(other, *transfer);
                           });
      if (is_made) moving += bytes_of(*transfer);
    }
    most = std::max(most, held + moving);
    for (const Transfer& transfer : round.receives) {
      if (transfer.piece >= 0) hold(transfer.piece, bytes_of(transfer));
    }
    for (const int piece : round.ends) hold(piece, 0);
  }
  return most;
}

}  // namespace heddle
