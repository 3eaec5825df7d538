#include "mesh/layout.h"

namespace heddle {

Placement dual(const Placement& value) {
  switch (value.kind) {
    case Placement::Kind::replicate: return partial();
    case Placement::Kind::partial: return replicate();
    case Placement::Kind::invariant:
    case Placement::Kind::shard: break;
  }
  return value;
}

Layout Layout::with(Axis axis, Placement placement) const {
  Layout changed = *this;
  changed.by_axis[static_cast<std::size_t>(axis)] = placement;
  return changed;
}

Layout dual(const Layout& value) {
  Layout gradient;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    gradient.by_axis[axis] = dual(value.by_axis[axis]);
  }
  return gradient;
}

const char* name_of(Axis axis) {
  static constexpr std::array<const char*, kAxes> kNames = {"pp", "dp", "cp", "tp", "ep"};
  return kNames[static_cast<std::size_t>(axis)];
}

std::string to_text(const Layout& layout) {
  std::string text;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const Placement& placement = layout.by_axis[axis];
    if (placement.kind == Placement::Kind::invariant) continue;
    if (!text.empty()) text += " ";
    text += std::string(name_of(static_cast<Axis>(axis))) + "=";
    if (placement.kind == Placement::Kind::replicate) text += "R";
    if (placement.kind == Placement::Kind::partial) text += "P";
    if (placement.kind == Placement::Kind::shard)
      text += "S(" + std::to_string(placement.dim) + ")";
  }
  return text.empty() ? "I" : text;
}

}  // namespace heddle
