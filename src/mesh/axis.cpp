#include "mesh/axis.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {
namespace {

constexpr std::array kDense = {Axis::site, Axis::pp, Axis::dp, Axis::cp, Axis::tp};
constexpr std::array kKeys = {Axis::site, Axis::pp, Axis::dp, Axis::cp, Axis::kv, Axis::copy};
constexpr std::array kExperts = {Axis::site, Axis::pp, Axis::edp, Axis::ep, Axis::etp};

}  // namespace

const char* name_of(Axis axis) {
  static constexpr std::array<const char*, kAxes> kNames = {
      "site", "pp", "dp", "cp", "tp", "tp heads", "tp copies", "edp", "ep", "etp"};
  return kNames[static_cast<std::size_t>(axis)];
}

std::span<const Axis> axes_of(View view) {
  switch (view) {
    case View::dense: return kDense;
    case View::keys: return kKeys;
    case View::experts: return kExperts;
  }
  return {};
}

View view_of(AxisSet axes) {
  for (const View view : {View::dense, View::keys, View::experts}) {
    const auto known = axes_of(view);
    if (std::ranges::count_if(known, [&](Axis axis) { return axes.contains(axis); }) ==
        axes.count()) {
      return view;
    }
  }
  HEDDLE_CHECK(false, "no view of the ranks has the axes {}", to_text(axes));
}

std::string to_text(AxisSet axes) {
  std::string text;
  for (int index = 0; index < kAxes; ++index) {
    const auto axis = static_cast<Axis>(index);
    if (axes.contains(axis)) text += (text.empty() ? "" : ", ") + std::string(name_of(axis));
  }
  return text;
}

}  // namespace heddle
