#pragma once

namespace heddle {

/// How ranks that send to each other directly sum a tensor of so many bytes. True: everybody sends
/// all of it to everybody, which takes one way over a link. False: each rank sums a part and sends
/// the sum to the others, which takes two, but sends less from three ranks on. The first, where a
/// rank sends little beyond the least: what near links carry in the time of one way, and far ones
/// in less.
constexpr bool sums_in_one_way(int ranks, double bytes) {
  constexpr double kMostMore = 64 << 10;
  return ranks <= 2 || bytes * (ranks - 2) <= kMostMore;
}

}  // namespace heddle
