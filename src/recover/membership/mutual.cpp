#include "recover/membership/mutual.h"

#include <algorithm>

namespace heddle::recover {

std::vector<std::size_t> mutually_heard(std::vector<Voter> voters) {
  std::erase_if(voters, [](const Voter& voter) { return !voter.hears[voter.place]; });
  std::ranges::sort(voters, {}, &Voter::place);
  const auto bad_links = [&](const Voter& one) {
    return std::ranges::count_if(voters, [&](const Voter& other) {
      return !one.hears[other.place] || !other.hears[one.place];
    });
  };
  while (!voters.empty()) {
    auto worst = voters.begin();
    for (auto voter = voters.begin(); voter != voters.end(); ++voter) {
      if (bad_links(*voter) >= bad_links(*worst)) worst = voter;
    }
    if (bad_links(*worst) == 0) break;
    voters.erase(worst);
  }
  std::vector<std::size_t> places;
  places.reserve(voters.size());
  for (const Voter& voter : voters) places.push_back(voter.place);
  return places;
}

}  // namespace heddle::recover
