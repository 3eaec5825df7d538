#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// Where a micro-batch goes: nodes in the order of its forward. It begins at a node of the first
/// stage, which also has the output layer: from the last node it goes back there for its loss, and
/// then all the way back (SkipPipe, arXiv 2502.19913).
using Route = std::vector<int>;

/// The pipeline that routes go through, and what they may do.
struct RouteRules {
  std::vector<std::vector<int>> nodes_by_stage;
  int length = 0;        ///< nodes of every route; fewer than stages: some are skipped
  int memory = 3;        ///< micro-batches that a node has under way
  int most_swaps = 2;    ///< stages visited one place behind the furthest that was reached
  int longest_jump = 4;  ///< stages ahead of the furthest that was reached

  int stages() const { return static_cast<int>(nodes_by_stage.size()); }
  /// -1: of none.
  int stage_of(int node) const;
};

/// The nodes of so many stages that a share of them is skipped: 6 stages and 0.33 give 4.
int route_length(int stages, double skipped);

/// What is wrong with routes that are under way at the same time, one line each; empty: nothing.
/// Each route begins at the first stage, visits no stage twice, has exactly the length asked for,
/// and leaves the order of stages only as far as the rules allow. Together they put at most
/// `memory` micro-batches on a node, and so equal numbers on stages of equal size where all that
/// room is used. (That two are on a node at the same time is no fault: it makes one wait.)
std::vector<std::string> faults_of(const std::vector<Route>& routes, const RouteRules& rules);

// Routes of a pipeline with one rank per stage, that micro-batches take in turn.

/// The first two stages of so many in swapped order, and the last two (CheckFree+, arXiv
/// 2506.15461). There are such pairs with 2 stages, and from 4 on.
std::vector<int> swapped_pairs(int stages);
constexpr bool has_swapped_pairs(int stages) { return stages == 2 || stages >= 4; }

/// What `parallel.skip` and `parallel.routes` say. Text: "swap", where every other micro-batch
/// takes the ranks behind the first with swapped pairs; or the routes, "0-1-3 0-2-3"; or nothing:
/// all ranks in order, of which a share is left out, evenly over the ranks behind the first.
/// Error(usage) for text that is neither, and for routes against the rules.
std::vector<Route> make_routes(int ranks, double skipped, std::string_view text);

/// Error(usage) where routes break a rule: begin elsewhere, differ in length, visit twice, swap or
/// jump too far.
void require_routes(const std::vector<Route>& routes, int ranks);

/// As `make_routes` reads them.
std::string to_text(const std::vector<Route>& routes);

}  // namespace heddle
