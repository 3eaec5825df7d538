#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

/// The piece that a message is, or adds to.
inline PieceKind piece_kind_of(Content content) {
  switch (content) {
    case Content::kv: return PieceKind::keys;
    case Content::out: return PieceKind::outputs;
    case Content::q_grad: return PieceKind::query_grads;
    case Content::kv_grad: return PieceKind::key_grads;
    default: return PieceKind::queries;
  }
}

/// What is added up, as opposed to what is given.
inline bool is_result(PieceKind kind) { return kind >= PieceKind::outputs; }

/// How many tensors there are by token, and how many statistics.
struct PieceParts {
  int rows = 1, statistics = 0;
};

/// Of a piece of results, or of keys.
inline PieceParts parts_of(PieceKind kind) {
  const bool is_of_keys = kind == PieceKind::keys || kind == PieceKind::key_grads;
  return {is_of_keys ? 2 : 1, kind == PieceKind::outputs ? 1 : 0};
}

inline PieceParts parts_of(const Message& message) {
  switch (message.content) {
    case Content::q_with_grad: return {2, 2};
    case Content::out: return {1, message.is_partial ? 1 : 0};
    case Content::kv:
    case Content::kv_grad: return {2, 0};
    default: return {1, 0};
  }
}

}  // namespace heddle
