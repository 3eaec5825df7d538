// How much longer a pass over a layer of experts takes than its recurrence says. Products and
// messages are timed waits (of messages, before a real one of a few rows), so whatever is above is
// the walk's, the communicators', and the system's. On a busy machine start it with real-time
// priority:
//
//     chrt -f 10 passes_bench > table.md
//
// Four ranks, two nodes of two: threads, or under mpirun -n 4 processes.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/timed_pass.h"
#include "in_turns.h"
#include "parallel/offered_sums.h"

namespace heddle {
namespace {

constexpr int kRounds = 5, kPerNode = 2;
constexpr double kSlice = 0.15;

struct Case {
  ExpertsPassShape shape;
  ExpertsSeconds seconds;
  std::vector<double> runs = {};

  int ranks() const { return 4; }
};

double measure(const Case& what, World& world) {
  const ExpertNodes plain(world, kPerNode);
  const auto degree = what.shape.degree;
  ExpertNodes nodes(world, kPerNode);
  nodes.ep = with_timed_exchanges(*plain.ep, [&](int) { return what.seconds.exchange; });
  // All gathers of a pass come before its scatters.
  nodes.etp = with_timed_exchanges(*plain.etp, [&](int made) {
    return made < degree ? what.seconds.gather : what.seconds.scatter;
  });
  nodes.run_in_background();
  const ExchangePlan plan{.r = kPerNode,
                          .degree_forward = degree,
                          .degree_backward = degree,
                          .networks = what.shape.has_one_network ? 1 : 2};
  const auto between = world.all().split(world.rank() % kPerNode, world.rank(), "dp");
  const auto dp = with_timed_exchanges(
      *between, [&](int) { return what.seconds.gradients; }, CommOp::all_reduce);
  dp->run_in_background(true);
  Memory memory;
  const Tensor slice = memory.zeros({16}, DType::f32, MemoryTag::communication);
  OfferedSums offered;
  if (what.shape.sends_gradients) {
    offered.offer_beside_experts(
        {dp.get(), [&](Stream& after) { return dp->all_reduce(slice, ReduceOp::sum, after); }});
  }
  const double own =
      TimedExpertsPass(nodes, 64, 16, plan, 1).run({.expert = what.seconds.expert}, &offered);
  return world.all().combine(own, ReduceOp::max);
}

std::vector<Case> make_cases() {
  // Bound by the network between nodes, by the one within, by products, by nothing alone; with
  // gathers that differ from scatters, of which the paper's closed forms are not exact.
  const ExpertsSeconds bounds[] = {
      {.exchange = 0.16, .gather = 0.04, .expert = 0.08, .scatter = 0.04},
      {.exchange = 0.04, .gather = 0.16, .expert = 0.08, .scatter = 0.16},
      {.exchange = 0.06, .gather = 0.04, .expert = 0.32, .scatter = 0.04},
      {.exchange = 0.10, .gather = 0.10, .expert = 0.20, .scatter = 0.10},
      {.exchange = 0.08, .gather = 0.06, .expert = 0.10, .scatter = 0.14}};
  std::vector<Case> cases;
  for (const bool has_one_network : {false, true}) {
    for (const ExpertsSeconds& whole : bounds) {
      for (const int degree : {1, 2, 4, 8}) {
        ExpertsSeconds chunk = whole;
        for (double* part : {&chunk.exchange, &chunk.gather, &chunk.expert, &chunk.scatter}) {
          *part /= degree;
        }
        cases.push_back({{.degree = degree, .has_one_network = has_one_network}, chunk});
        // With a slice of gradients that the network has time for in some of them.
        chunk.gradients = kSlice;
        cases.push_back(
            {{.degree = degree, .sends_gradients = true, .has_one_network = has_one_network},
             chunk});
      }
    }
  }
  return cases;
}

void print_table(std::vector<Case>& cases) {
  fmt::print(
      "| networks | degree | exchange ms | gather | expert | scatter | gradients | recurrence ms | "
      "measured ms "
      "(median of {}) | best ratio | median ratio | worst ratio |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      kRounds);
  for (auto& [shape, seconds, runs] : cases) {
    std::ranges::sort(runs);
    const double expected = makespan(make_experts_pass(shape), seconds);
    fmt::print(
        "| {} | {} | {:.0f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | {:.1f} | {:.1f} | {:.3f} | "
        "{:.3f} | {:.3f} |\n",
        shape.has_one_network ? "in turn" : "at once", shape.degree, 1e3 * seconds.exchange,
        1e3 * seconds.gather, 1e3 * seconds.expert, 1e3 * seconds.scatter,
        shape.sends_gradients ? 1e3 * seconds.gradients : 0.0, 1e3 * expected,
        1e3 * runs[kRounds / 2], runs.front() / expected, runs[kRounds / 2] / expected,
        runs.back() / expected);
  }
}

}  // namespace
}  // namespace heddle

int main(int, char** arguments) {
  using namespace heddle;
  measure_in_turns(
      arguments[0], make_cases(), kRounds,
      [](const Case& each, World& world) { return measure(each, world); }, print_table);
}
