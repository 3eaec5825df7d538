#pragma once

#include <functional>
#include <optional>

#include "ops/rope.h"
#include "tensor/tensor.h"

namespace heddle {

/// Cosines and sines by position, [positions, rotary_dim / 2].
struct RopeTable {
  Tensor cos_PR, sin_PR;
};

/// A rotary embedding, to be shared by the attention layers of a rank. Of some kinds angles depend
/// on how long the sequence is: these have a table for each class of lengths.
class RopeTables {
 public:
  /// Lengths of a class have the same table; it is named by one of them.
  struct ByLength {
    std::function<std::int64_t(std::int64_t length)> class_of;
    std::function<RopeTable(std::int64_t length)> make;
  };

  /// Of models without one.
  RopeTables() = default;
  RopeTables(RopeTable table, ops::RopePairs pairs) : usual_(std::move(table)), pairs_(pairs) {}
  /// `usual` is the length whose table is made at once.
  RopeTables(std::int64_t usual, ops::RopePairs pairs, ByLength by_length);

  bool defined() const { return usual_.cos_PR.defined(); }
  ops::RopePairs pairs() const { return pairs_; }
  bool depends_on_length() const { return by_length_.has_value(); }
  /// The table for a sequence of so many tokens. Beside the usual one the last is kept. Not
  /// thread-safe.
  const RopeTable& of_length(std::int64_t length) const;

 private:
  RopeTable usual_;
  ops::RopePairs pairs_ = ops::RopePairs::halves;
  std::optional<ByLength> by_length_;
  std::int64_t usual_class_ = 0;
  mutable RopeTable other_;
  mutable std::int64_t other_class_ = 0;
};

}  // namespace heddle
