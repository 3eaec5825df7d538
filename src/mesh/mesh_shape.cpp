#include "mesh/mesh_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace heddle {

int MeshShape::size(Axis axis) const {
  const auto of = [this](Axis one) { return sizes_[static_cast<std::size_t>(one)]; };
  switch (axis) {
    case Axis::kv: return of(Axis::tp) / of(Axis::copy);
    case Axis::edp:
      return of(Axis::dp) * of(Axis::cp) * of(Axis::tp) / (of(Axis::ep) * of(Axis::etp));
    default: return of(axis);
  }
}

int MeshShape::size(AxisSet axes) const {
  int ranks = 1;
  for (const Axis axis : axes_of(view_of(axes))) ranks *= axes.contains(axis) ? size(axis) : 1;
  return ranks;
}

MeshShape MeshShape::with(Axis axis, int size) const {
  HEDDLE_CHECK(axis != Axis::kv && axis != Axis::edp, "{} follows from other axes", name_of(axis));
  MeshShape changed = *this;
  changed.sizes_[static_cast<std::size_t>(axis)] = size;
  return changed;
}

int MeshShape::ranks() const {
  int ranks = 1;
  for (const Axis axis : axes_of(View::dense)) ranks *= size(axis);
  return ranks;
}

int MeshShape::stride(Axis axis) const {
  const auto axes = axes_of(view_of({axis}));
  int ranks = 1;
  for (std::size_t i = axes.size(); axes[--i] != axis;) ranks *= size(axes[i]);
  return ranks;
}

int MeshShape::coord(Axis axis, int rank) const { return rank / stride(axis) % size(axis); }

bool MeshShape::is_first(AxisSet axes, int rank) const {
  return std::ranges::all_of(axes_of(view_of(axes)), [&](Axis axis) {
    return !axes.contains(axis) || coord(axis, rank) == 0;
  });
}

std::vector<int> MeshShape::group(AxisSet axes, int rank) const {
  int first = rank;
  for (const Axis axis : axes_of(view_of(axes))) {
    if (axes.contains(axis)) first -= coord(axis, rank) * stride(axis);
  }
  std::vector<int> members = {first};
  for (const Axis axis : axes_of(view_of(axes))) {
    if (!axes.contains(axis)) continue;
    const std::vector<int> before = std::move(members);
    members.clear();
    for (const int member : before) {
      for (int at = 0; at < size(axis); ++at) members.push_back(member + at * stride(axis));
    }
  }
  return members;
}

AxisSet MeshShape::occupied(AxisSet axes) const {
  AxisSet some;
  for (const Axis axis : axes_of(view_of(axes))) {
    if (axes.contains(axis) && size(axis) > 1) some = some.with(axis);
  }
  return some;
}

std::string MeshShape::text() const {
  const std::string context = size(Axis::cp) > 1 ? fmt::format(" cp={}", size(Axis::cp)) : "";
  const std::string sites = size(Axis::site) > 1 ? fmt::format("sites={} ", size(Axis::site)) : "";
  std::string experts = size(Axis::ep) > 1 ? fmt::format(" ep={}", size(Axis::ep)) : "";
  if (size(Axis::etp) > 1) experts += fmt::format(" etp={}", size(Axis::etp));
  return fmt::format("{}dp={}{} tp={} pp={}{}", sites, size(Axis::dp), context, size(Axis::tp),
                     size(Axis::pp), experts);
}

}  // namespace heddle
