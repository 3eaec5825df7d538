#pragma once

#include <cstdint>

#include "nn/context.h"

namespace heddle {

/// Where, on a GPU, lies what a layer of experts holds for a moment: rows as wide as x, of which
/// there are as many as choices, and their insides, what they have within their experts. One room
/// is as large as the insides of all rows, one as rows of two experts a token. So much is there at
/// once however many experts a token has, in the same two blocks of memory in every pass.
///
/// What does not fit goes through them in stretches: of rows, where products sum over the width of
/// x, and of columns, where results are as wide as x: sums over the experts of a token are whole in
/// either case.
///
/// Where a layer behind keeps more than all rows take, they are not cut: the room of rows is then
/// at least as large as what a layer keeps of insides, which may lie there later.
class ShortRooms {
 public:
  /// `inside` is the width of an expert.
  ShortRooms(std::int64_t tokens, std::int64_t slots, std::int64_t width, std::int64_t inside,
             bool is_followed = false);

  /// So many rows, and of all rows so many columns, fit at once.
  struct Stretch {
    std::int64_t rows = 0, columns = 0;
  };
  /// Beside the insides of all rows.
  const Stretch& beside_all() const { return beside_all_; }
  /// Rows beside their own insides; columns of all rows without any.
  const Stretch& beside_own() const { return beside_own_; }
  /// More than two experts a token, and more than a few rows.
  bool are_needed() const { return are_needed_; }

  /// Of both rooms.
  std::int64_t elements() const { return rows_ * inside_ + elements_; }

  /// [rows, inside]
  Tensor insides(std::int64_t rows, DType dtype, Ctx& ctx) const;
  /// [rows, columns]
  Tensor rows(std::int64_t rows, std::int64_t columns, DType dtype, Ctx& ctx) const;

 private:
  const std::int64_t rows_, width_, inside_;
  std::int64_t elements_ = 0;  ///< of the room that is for rows first
  bool are_needed_ = false;
  Stretch beside_all_, beside_own_;
};

}  // namespace heddle
