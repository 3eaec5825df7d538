#include "parallel/ownership.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {
namespace {

/// Ranks of these axes see other tokens.
constexpr AxisSet kDividing{Axis::dp, Axis::cp, Axis::edp};

/// On which others hold the same elements, also of what ZeRO divides.
AxisSet holders(const Ownership& ownership, bool is_divided) {
  return is_divided ? ownership.alike.without(ownership.divides) : ownership.alike;
}

bool is_at_first_end(const Ownership& ownership, const MeshShape& shape, int rank) {
  return !ownership.sums_ends || shape.coord(Axis::pp, rank) == shape.ends.front();
}

}  // namespace

Ownership ownership(const Layout& layout) {
  Ownership result;
  for (const Axis axis : axes_of(layout.view)) {
    switch (layout.on(axis).kind) {
      case Placement::Kind::replicate:
        result.alike = result.alike.with(axis);
        (kDividing.contains(axis) ? result.divides : result.sums) =
            (kDividing.contains(axis) ? result.divides : result.sums).with(axis);
        break;
      case Placement::Kind::invariant: result.alike = result.alike.with(axis); break;
      case Placement::Kind::own: result.own = result.own.with(axis); break;
      case Placement::Kind::ends: result.sums_ends = true; break;
      case Placement::Kind::partial:
        HEDDLE_CHECK(false, "a parameter is no sum over {}", name_of(axis));
        break;
      case Placement::Kind::shard:
      case Placement::Kind::alone:
      case Placement::Kind::unsaid: break;
    }
  }
  return result;
}

bool counts(const Ownership& ownership, const MeshShape& shape, int rank, bool is_divided) {
  return is_at_first_end(ownership, shape, rank) &&
         shape.is_first(holders(ownership, is_divided), rank);
}

WriteShare write_share(const Ownership& ownership, const MeshShape& shape, int rank,
                       bool is_divided) {
  if (!is_at_first_end(ownership, shape, rank) || !shape.is_first(ownership.own, rank)) return {};
  const AxisSet among = shape.occupied(holders(ownership, is_divided));
  const auto group = shape.group(among, rank);
  return {.among = among,
          .index = static_cast<int>(std::ranges::find(group, rank) - group.begin()),
          .count = static_cast<int>(group.size())};
}

std::string unsaid_axis(const Layout& layout, const MeshShape& shape) {
  for (const Axis axis : axes_of(layout.view)) {
    if (shape.size(axis) > 1 && layout.on(axis).kind == Placement::Kind::unsaid) {
      return name_of(axis);
    }
  }
  return {};
}

}  // namespace heddle
