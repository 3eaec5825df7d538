#include "mesh/layout.h"

namespace heddle {

Placement dual(const Placement& value) {
  switch (value.kind) {
    case Placement::Kind::replicate: return partial();
    case Placement::Kind::partial: return replicate();
    default: return value;
  }
}

Layout Layout::with(Axis axis, Placement placement) const {
  Layout changed = *this;
  changed.by_axis[static_cast<std::size_t>(axis)] = placement;
  return changed;
}

Layout whole_on_stage(View view) {
  Layout layout{.view = view};
  for (const Axis axis : axes_of(view)) layout = layout.with(axis, invariant());
  for (const Axis axis : {Axis::dp, Axis::cp, Axis::edp}) {
    if (layout.on(axis) == invariant()) layout = layout.with(axis, replicate());
  }
  return layout.with(Axis::site, own()).with(Axis::pp, alone());
}

std::string to_text(const Layout& layout) {
  const auto letter = [](const Placement& placement) -> std::string {
    switch (placement.kind) {
      case Placement::Kind::unsaid:
      case Placement::Kind::invariant: return "";
      case Placement::Kind::replicate: return "R";
      case Placement::Kind::partial: return "P";
      case Placement::Kind::shard: return "S(" + std::to_string(placement.dim) + ")";
      case Placement::Kind::alone: return "alone";
      case Placement::Kind::ends: return "ends";
      case Placement::Kind::own: return "own";
    }
    return "";
  };
  std::string text;
  for (const Axis axis : axes_of(layout.view)) {
    const std::string how = letter(layout.on(axis));
    if (how.empty()) continue;
    text += (text.empty() ? "" : " ") + std::string(name_of(axis)) + "=" + how;
  }
  return text.empty() ? "I" : text;
}

}  // namespace heddle
