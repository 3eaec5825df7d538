#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heddle::planner {

/// Which server does which stage of which pipeline: `servers` has pipelines x stages entries, the
/// stages of one pipeline in a row.
struct Placement {
  std::vector<int> servers;
  double seconds = 0;
};

/// What a placement is judged by (Pipette): pipelines of whole servers whose messages cross once
/// per direction, and the ring of the first stages' gradients.
struct PlacementProblem {
  const std::vector<std::vector<double>>& bytes_per_s;  ///< between servers
  int stages = 1;
  double message_bytes = 0;   ///< of one micro-batch between two stages
  double gradient_bytes = 0;  ///< of the first stage

  int servers() const { return static_cast<int>(bytes_per_s.size()); }
  int pipelines() const { return servers() / stages; }
};

/// The slowest pipeline's way down and up, and the first stages' exchange over its slowest link.
double placement_seconds(const PlacementProblem& problem, std::span<const int> servers);

/// Simulated annealing from a random start: a server moves elsewhere, two change places, or a
/// stretch is reversed. The temperature starts at a tenth of the cost and falls by a thousandth
/// each step, so a move that doubles the cost is not taken like one that is a little worse.
Placement anneal_placement(const PlacementProblem& problem, int steps, std::uint64_t seed);

}  // namespace heddle::planner
