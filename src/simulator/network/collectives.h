#pragma once

#include <string>
#include <vector>

#include "simulator/network/flow_program.h"

namespace heddle::network {

// Collectives as programs. `bytes` is what each rank has: the tensor that is reduced, or all that a
// rank sends (its own part included) in an all-to-all. Error(usage) names a number of ranks that
// the algorithm cannot have.

/// All-reduce: 2(n-1) rounds of bytes/n to the next rank.
FlowProgram ring_all_reduce(int ranks, double bytes);
/// All-reduce: up and down two binary trees at once, each with half of the bytes, in `chunks`
/// that follow each other. Who is inside one tree is a leaf of the other.
FlowProgram tree_all_reduce(int ranks, double bytes, int chunks);
/// All-reduce: exchanges with ranks at half the distance and half the bytes each time, and back.
/// The number of ranks has to be a power of two.
FlowProgram halving_doubling_all_reduce(int ranks, double bytes);
/// All-to-all: every rank sends bytes/n to every other, at once.
FlowProgram direct_all_to_all(int ranks, double bytes);

// Single steps, to study a network with.

/// Every rank sends all to the next.
FlowProgram ring_step(int ranks, double bytes);
/// Every rank sends all to the one at half the distance around. The number of ranks is even.
FlowProgram pairwise_exchange(int ranks, double bytes);
/// Every rank sends all to rank 0.
FlowProgram incast(int ranks, double bytes);

struct PatternOptions {
  int ranks = 0;
  double bytes = 0.0;
  int chunks = 8;  ///< of a tree
};

std::vector<std::string> pattern_names();
/// Error(usage) names the known ones.
FlowProgram make_pattern(const std::string& name, const PatternOptions& options);

}  // namespace heddle::network
