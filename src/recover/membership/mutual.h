#pragma once

#include <cstddef>
#include <vector>

namespace heddle::recover {

/// Who took part in a vote, and whom of all places it hears; its own: that it wants to stay.
struct Voter {
  std::size_t place = 0;
  std::vector<bool> hears = {};
};

/// The places, ascending, of voters that all hear each other, since collectives need every pair.
/// As long as there are pairs that do not, the one with most of them goes, the last of several:
/// one bad link costs one member, a member with bad links only itself.
std::vector<std::size_t> mutually_heard(std::vector<Voter> voters);

}  // namespace heddle::recover
