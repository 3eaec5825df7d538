#include "nn/experts/short_rooms.h"

#include <algorithm>

namespace heddle {

namespace {

/// Of rows that are not worth cutting.
constexpr std::int64_t kFewRows = 4096;
/// Parts of a row begin at multiples, for the sake of the matrix products.
constexpr std::int64_t kColumns = 64;

std::int64_t parts_of(std::int64_t whole, std::int64_t most) { return (whole + most - 1) / most; }

/// Parts of a row that are equal, but for the last one.
std::int64_t columns_of(std::int64_t width, std::int64_t parts) {
  const std::int64_t columns = parts_of(width, parts);
  return std::min(width, parts_of(columns, kColumns) * kColumns);
}

}  // namespace

ShortRooms::ShortRooms(std::int64_t tokens, std::int64_t slots, std::int64_t width,
                       std::int64_t inside, bool is_followed)
    : rows_(tokens * slots), width_(width), inside_(inside) {
  const std::int64_t parts = rows_ <= kFewRows ? 1 : parts_of(slots, 2);
  are_needed_ = parts > 1;
  beside_all_ = {parts_of(rows_, parts), columns_of(width, parts)};
  beside_own_ = {rows_, width};
  elements_ = std::max(beside_all_.rows * width, rows_ * beside_all_.columns);
  if (!are_needed_) return;
  const std::int64_t kept = 2 * rows_ * inside;  // gate and up, by the layer behind
  if (is_followed && rows_ * width - elements_ <= kept) {
    beside_all_ = beside_own_;
    elements_ = std::max(rows_ * width, kept);
    return;
  }
  const std::int64_t for_insides = rows_ * inside;
  const std::int64_t most_rows = std::max(std::min(for_insides / width, elements_ / inside),
                                          std::min(rows_, elements_ / width));
  beside_own_.rows = parts_of(rows_, parts_of(rows_, most_rows));
  const std::int64_t most_columns = std::max(for_insides, elements_) / rows_;
  if (most_columns < width) {
    beside_own_.columns = columns_of(
        width, parts_of(width, std::max(most_columns / kColumns, std::int64_t{1}) * kColumns));
  }
}

Tensor ShortRooms::insides(std::int64_t rows, DType dtype, Ctx& ctx) const {
  const bool is_taken = rows < rows_ && rows * width_ > elements_;
  const Tensor room = ctx.activation({is_taken ? elements_ : rows_ * inside_}, dtype);
  return room.slice(0, 0, rows * inside_).view({rows, inside_});
}

Tensor ShortRooms::rows(std::int64_t rows, std::int64_t columns, DType dtype, Ctx& ctx) const {
  const std::int64_t needed = rows * columns;
  const Tensor room =
      ctx.activation({needed > elements_ ? std::max(needed, rows_ * inside_) : elements_}, dtype);
  return room.slice(0, 0, needed).view({rows, columns});
}

}  // namespace heddle
