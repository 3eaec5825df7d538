#include "recover/membership/note.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace heddle::recover {

std::optional<std::size_t> Roster::place_of(MemberId id) const {
  const auto found = std::ranges::find(members, id, &Member::id);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::size_t>(found - members.begin());
}

bool Roster::is_quorum(const std::vector<bool>& there) const {
  HEDDLE_CHECK(there.size() == members.size(), "{} of {} members", there.size(), members.size());
  const auto twice = 2 * static_cast<std::size_t>(std::ranges::count(there, true));
  return twice > members.size() || (twice == members.size() && twice > 0 && there.front());
}

std::string Roster::quorum_text() const {
  const std::size_t half = members.size() / 2;
  if (members.size() % 2 == 1) return fmt::format("{}", half + 1);
  return fmt::format("{}, or {} with the first of them", half + 1, half);
}

}  // namespace heddle::recover
