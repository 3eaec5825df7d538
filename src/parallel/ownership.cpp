#include "parallel/ownership.h"

#include "base/check.h"

namespace heddle {
namespace {

/// Ranks of these axes see other tokens.
constexpr AxisSet kDividing{Axis::dp, Axis::cp, Axis::edp};

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
  const AxisSet among = is_divided ? ownership.alike.without(ownership.divides) : ownership.alike;
  const bool is_first_end =
      !ownership.sums_ends || shape.coord(Axis::pp, rank) == shape.ends.front();
  return is_first_end && shape.is_first(among, rank);
}

bool writes(const Ownership& ownership, const MeshShape& shape, int rank, bool is_divided) {
  return counts(ownership, shape, rank, is_divided) && shape.is_first(ownership.own, rank);
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
