#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace heddle::planner {

/// Who updates the weights.
enum class Updates : std::uint8_t { adamw, sgd, muon, onebit_adam };
/// As the run file's optim.name spells them, in the order of Updates.
std::span<const std::string_view> updates_names();
std::string_view name_of(Updates updates);
/// Error(usage) for a name that none has.
Updates updates_named(std::string_view name);

}  // namespace heddle::planner
