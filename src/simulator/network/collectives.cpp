#include "simulator/network/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace heddle::network {
namespace {

/// Messages that are played in about two gibibytes.
constexpr double kMostMessages = 1e7;

/// Puts messages into steps, and the steps of each rank into rounds. Both ends of a message are in
/// the same step, so no two ranks can wait for each other.
class Steps {
 public:
  Steps(std::string name, int ranks, double messages) {
    if (ranks < 2) {
      throw Error(ErrorCode::usage, fmt::format("{} on {} ranks sends nothing", name, ranks),
                  "give at least 2 ranks");
    }
    if (messages > kMostMessages) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} on {} ranks has {:.0f} messages, too many to play", name, ranks,
                              messages),
                  "give fewer ranks");
    }
    program_.name = std::move(name);
    program_.by_rank.resize(static_cast<std::size_t>(ranks));
  }

  void add(int step, int source, int destination, double bytes) {
    round(step, source).sends.push_back({destination, bytes});
    round(step, destination).receives.push_back({source, bytes});
  }

  FlowProgram take() { return std::move(program_); }

 private:
  Round& round(int step, int rank) {
    auto& rounds = program_.by_rank[static_cast<std::size_t>(rank)];
    if (rounds.size() <= static_cast<std::size_t>(step)) {
      rounds.resize(static_cast<std::size_t>(step) + 1);
    }
    return rounds[static_cast<std::size_t>(step)];
  }

  FlowProgram program_;
};

/// The parent of a node other than 0 in the binary tree whose odd nodes are leaves.
int parent_of(int node, int nodes) {
  const int bit = node & -node;
  const int up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}

int depth_of(int node, int nodes) {
  int depth = 0;
  for (; node != 0; node = parent_of(node, nodes)) ++depth;
  return depth;
}

void refuse_ranks(const char* name, int ranks, const char* needed) {
  throw Error(ErrorCode::usage, fmt::format("{} cannot be done by {} ranks", name, ranks),
              fmt::format("give {}", needed));
}

}  // namespace

FlowProgram ring_all_reduce(int ranks, double bytes) {
  Steps steps("ring", ranks, 2.0 * ranks * ranks);
  for (int step = 0; step < 2 * (ranks - 1); ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      steps.add(step, rank, (rank + 1) % ranks, bytes / ranks);
    }
  }
  return steps.take();
}

FlowProgram tree_all_reduce(int ranks, double bytes, int chunks) {
  if (chunks < 1) {
    throw Error(ErrorCode::usage, fmt::format("a tree cannot send its bytes in {} chunks", chunks),
                "give 1 or more");
  }
  Steps steps("tree", ranks, 4.0 * ranks * chunks);
  int depth = 0;
  for (int node = 0; node < ranks; ++node) depth = std::max(depth, depth_of(node, ranks));
  const auto in_second = [ranks](int node) {  // mirrored, or turned by one when that is no change
    return ranks % 2 == 0 ? ranks - 1 - node : (node + 1) % ranks;
  };
  for (int node = 1; node < ranks; ++node) {
    const int parent = parent_of(node, ranks), below = depth_of(node, ranks);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int up = chunk + depth - below, down = chunk + depth + below - 1;
      const double part = bytes / 2 / chunks;
      steps.add(up, node, parent, part);
      steps.add(up, in_second(node), in_second(parent), part);
      steps.add(down, parent, node, part);
      steps.add(down, in_second(parent), in_second(node), part);
    }
  }
  return steps.take();
}

FlowProgram halving_doubling_all_reduce(int ranks, double bytes) {
  Steps steps("halving-doubling", ranks, 2.0 * ranks * 32);
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    refuse_ranks("halving-doubling", ranks, "a power of two");
  }
  const int halvings = std::countr_zero(static_cast<unsigned>(ranks));
  for (int i = 0; i < halvings; ++i) {
    const int distance = ranks >> (i + 1);
    const double part = bytes * distance / ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      steps.add(i, rank, rank ^ distance, part);
      steps.add(2 * halvings - 1 - i, rank, rank ^ distance, part);
    }
  }
  return steps.take();
}

FlowProgram direct_all_to_all(int ranks, double bytes) {
  Steps steps("all-to-all", ranks, 1.0 * ranks * ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 1; i < ranks; ++i) steps.add(0, rank, (rank + i) % ranks, bytes / ranks);
  }
  return steps.take();
}

FlowProgram ring_step(int ranks, double bytes) {
  Steps steps("ring-step", ranks, ranks);
  for (int rank = 0; rank < ranks; ++rank) steps.add(0, rank, (rank + 1) % ranks, bytes);
  return steps.take();
}

FlowProgram pairwise_exchange(int ranks, double bytes) {
  Steps steps("exchange", ranks, ranks);
  if (ranks % 2 != 0) refuse_ranks("an exchange", ranks, "an even number");
  for (int rank = 0; rank < ranks; ++rank) steps.add(0, rank, (rank + ranks / 2) % ranks, bytes);
  return steps.take();
}

FlowProgram incast(int ranks, double bytes) {
  Steps steps("incast", ranks, ranks);
  for (int rank = 1; rank < ranks; ++rank) steps.add(0, rank, 0, bytes);
  return steps.take();
}

namespace {

using Options = const PatternOptions&;

struct Pattern {
  const char* name;
  FlowProgram (*make)(Options);
};

constexpr Pattern kPatterns[] = {
    {"ring", [](Options o) { return ring_all_reduce(o.ranks, o.bytes); }},
    {"tree", [](Options o) { return tree_all_reduce(o.ranks, o.bytes, o.chunks); }},
    {"halving-doubling", [](Options o) { return halving_doubling_all_reduce(o.ranks, o.bytes); }},
    {"all-to-all", [](Options o) { return direct_all_to_all(o.ranks, o.bytes); }},
    {"ring-step", [](Options o) { return ring_step(o.ranks, o.bytes); }},
    {"exchange", [](Options o) { return pairwise_exchange(o.ranks, o.bytes); }},
    {"incast", [](Options o) { return incast(o.ranks, o.bytes); }},
};

}  // namespace

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const Pattern& pattern : kPatterns) names.emplace_back(pattern.name);
  return names;
}

FlowProgram make_pattern(const std::string& name, const PatternOptions& options) {
  for (const Pattern& pattern : kPatterns) {
    if (name == pattern.name) return pattern.make(options);
  }
  throw Error(ErrorCode::usage, fmt::format("there is no pattern \"{}\"", name),
              fmt::format("give one of {}", fmt::join(pattern_names(), ", ")));
}

}  // namespace heddle::network
