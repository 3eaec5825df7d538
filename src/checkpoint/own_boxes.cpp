#include "checkpoint/own_boxes.h"

#include <algorithm>
#include <functional>
#include <map>

#include "parallel/box.h"

namespace heddle {
namespace {

using OnBox = std::function<void(const Shape& begin, const Tensor& data)>;

/// The elements [from, to) of the piece, in their order, as boxes.
void cut(const ParamPiece& piece, std::int64_t from, std::int64_t to, const OnBox& on_box) {
  for (const auto& [corner, extent] : boxes_in(piece.data.shape(), from, to)) {
    Shape begin = piece.begin;
    for (int dim = 0; dim < begin.dims(); ++dim) begin.set(dim, begin[dim] + corner[dim]);
    on_box(begin, piece.data.box(corner, extent));
  }
}

/// Boxes of at most so many elements, of whole rows where these are smaller.
void cut_small(const ParamPiece& piece, std::int64_t from, std::int64_t to,
               std::int64_t max_elements, const OnBox& on_box) {
  const std::int64_t row = piece.data.dims() > 1 ? piece.data.count() / piece.data.size(0) : 1;
  const std::int64_t step = std::max(max_elements / row * row, std::min(row, max_elements));
  while (from < to) {
    const std::int64_t next = std::min(to, (from / step + 1) * step);
    cut(piece, from, next, on_box);
    from = next;
  }
}

}  // namespace

std::vector<KeptBox> own_boxes(const std::vector<StateKind>& states, std::int64_t max_elements) {
  // The ranks of a group hold the same pieces in the same order: each takes one stretch of them.
  struct Group {
    WriteShare share;
    std::vector<std::pair<const StateKind*, const ParamPiece*>> pieces;
    std::int64_t elements = 0;
  };
  std::map<AxisSet, Group> groups;
  for (const StateKind& state : states) {
    for (const ParamPiece& piece : state.pieces) {
      if (piece.share.count == 0) continue;
      Group& group = groups[piece.share.among];
      group.share = piece.share;
      group.pieces.emplace_back(&state, &piece);
      group.elements += piece.data.count();
    }
  }
  std::vector<KeptBox> boxes;
  for (const auto& [among, group] : groups) {
    const std::int64_t begin = group.elements * group.share.index / group.share.count;
    const std::int64_t end = group.elements * (group.share.index + 1) / group.share.count;
    std::int64_t at = 0;
    for (const auto& [state, piece] : group.pieces) {
      const std::int64_t count = piece->data.count();
      const std::int64_t from = std::clamp<std::int64_t>(begin - at, 0, count);
      const std::int64_t to = std::clamp<std::int64_t>(end - at, 0, count);
      const auto keep = [&boxes, &kind = state->kind, &name = piece->part->name](
                            const Shape& corner, const Tensor& data) {
        boxes.push_back({kind, name, corner, data});
      };
      cut_small(*piece, from, to, max_elements, keep);
      at += count;
    }
  }
  return boxes;
}

std::vector<KeptTensor> named_here(const std::vector<StateKind>& states) {
  std::vector<KeptTensor> tensors;
  for (const StateKind& state : states) {
    for (const ParamPiece& piece : state.pieces) {
      const bool is_corner =
          std::ranges::all_of(piece.begin.sizes(), [](std::int64_t at) { return at == 0; });
      if (!is_corner || !piece.is_first_writer()) continue;
      tensors.push_back({state.kind, piece.part->name, piece.data.dtype(), piece.part->whole});
    }
  }
  return tensors;
}

}  // namespace heddle
