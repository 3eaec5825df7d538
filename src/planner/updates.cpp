#include "planner/updates.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace heddle::planner {

std::span<const std::string_view> updates_names() {
  static constexpr std::array<std::string_view, 4> names = {"adamw", "sgd", "muon", "onebit-adam"};
  return names;
}

std::string_view name_of(Updates updates) {
  return updates_names()[static_cast<std::size_t>(updates)];
}

Updates updates_named(std::string_view name) {
  const auto names = updates_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) fail(ErrorCode::usage, "there is no optimizer \"{}\"", name);
  return static_cast<Updates>(found - names.begin());
}

}  // namespace heddle::planner
