#include <benchmark/benchmark.h>

#include "simulator/network/collectives.h"
#include "simulator/network/placement.h"
#include "simulator/network/play_program.h"

namespace heddle::network {
namespace {

/// A pattern of 256 ranks on a leaf-spine of 16 x 16 x 16.
void play_pattern(benchmark::State& state, const char* pattern, Routing routing) {
  const Topology topology = make_topology(LeafSpine{});
  const FlowProgram program = make_pattern(pattern, {.ranks = 256, .bytes = 256e6});
  const PlayOptions options{.routing = {.routing = routing},
                            .placement = random_placement(topology, 256, 0)};
  for (auto _ : state) {
    const PlayedProgram played = play(topology, program, options);
    state.counters["messages"] = static_cast<double>(played.transfers);
    state.counters["solutions"] = static_cast<double>(played.solves);
  }
}

BENCHMARK_CAPTURE(play_pattern, all_to_all_ecmp, "all-to-all", Routing::ecmp);
BENCHMARK_CAPTURE(play_pattern, all_to_all_split, "all-to-all", Routing::split);
BENCHMARK_CAPTURE(play_pattern, all_to_all_spray, "all-to-all", Routing::spray);
BENCHMARK_CAPTURE(play_pattern, halving_doubling_ecmp, "halving-doubling", Routing::ecmp);
BENCHMARK_CAPTURE(play_pattern, ring_ecmp, "ring", Routing::ecmp);

}  // namespace
}  // namespace heddle::network

BENCHMARK_MAIN();
