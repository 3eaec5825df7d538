// How much longer attention that ranks share takes than its rounds say. Tiles are timed waits, so
// whatever is above the simulated time is the walk's, the communicator's, and the system's, which
// wakes a thread later than it asked for: the last column is against a simulation in which every
// pair takes longer by what the waits did on average. On a busy machine start it with real-time
// priority:
//
//     chrt -f 10 rounds_bench > table.md
//
// Ranks are threads; under mpirun (-n 4 or -n 8) they are processes.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/timed_walk.h"
#include "in_turns.h"
#include "simulator/play_context.h"

namespace heddle {
namespace {

constexpr int kRounds = 5;
/// What both passes of a rank compute, if all compute alike.
constexpr double kSeconds = 0.6;

/// In seconds.
struct Measured {
  double makespan = 0.0;  ///< of the slowest rank in forward, and then in backward
  double waited = 0.0;    ///< by all ranks together
};

struct Case {
  ContextPlan plan;
  ContextTimes times;
  std::vector<Measured> runs = {};

  int ranks() const { return plan.shape.ranks; }
  PlayedContext played(double slower = 1.0) const {
    ContextTimes used = times;
    used.pair *= slower;
    return in_sequence(play_forward(plan, used), play_backward(plan, used));
  }
};

/// Every rank calls it and gets the same.
Measured measure(const Case& what, World& world) {
  wake_in_time();
  Memory memory;
  Stream stream(1);
  const ContextShape& shape = what.plan.shape;
  const auto context = make_rank_context(shape, world.rank());
  const MicroBatch nothing;
  Ctx ctx{.stream = stream, .memory = memory, .batch = nothing};
  const double forward = what.times.pair / shape.heads;
  const auto timed = [&](const ContextProgram& program, ContextPassKind kind, double seconds) {
    world.all().barrier();
    const Stopwatch watch;
    const double waited = TimedPass(program, kind, shape).run(seconds, world, ctx);
    const double own = watch.seconds();
    return Measured{world.all().combine(own, ReduceOp::max),
                    world.all().combine(waited, ReduceOp::sum)};
  };
  const Measured first = timed(context->forward, ContextPassKind::forward, forward);
  const Measured second =
      timed(context->backward, ContextPassKind::backward, forward * what.times.backward);
  return {first.makespan + second.makespan, first.waited + second.waited};
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (const int ranks : {4, 8}) {
    const auto add = [&](ContextMethod method, ContextOrder order, int context_heads = 0) {
      const ContextPlan plan = make_context_plan({.method = method,
                                                  .order = order,
                                                  .ranks = ranks,
                                                  .tokens = 1024,
                                                  .heads = 8,
                                                  .key_heads = 8,
                                                  .head_dim = 8,
                                                  .context_heads = context_heads});
      const ContextTimes times{.pair = kSeconds * ranks / (3.5 * 1024 * 1025 / 2)};
      cases.push_back({plan, times});
    };
    for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather}) {
      for (const ContextOrder order :
           {ContextOrder::contiguous, ContextOrder::zigzag, ContextOrder::striped}) {
        add(method, order);
      }
    }
    add(ContextMethod::usp, ContextOrder::automatic, 2);
    for (const ContextMethod method :
         {ContextMethod::ulysses, ContextMethod::lightseq, ContextMethod::tokenring}) {
      add(method, ContextOrder::automatic);
    }
  }
  return cases;
}

void print(Case& done) {
  std::ranges::sort(done.runs, {}, &Measured::makespan);
  const PlayedContext played = done.played();
  const double simulated = played.makespan;
  const auto& [median, waited] = done.runs[kRounds / 2];
  const double slower = waited / played.computing;
  const ContextShape& shape = done.plan.shape;
  fmt::print(
      "| {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n",
      name_of(shape.method), name_of(shape.order), shape.ranks,
      done.plan.forward.rounds() + done.plan.backward.rounds(), simulated, median,
      done.runs.front().makespan / simulated, median / simulated,
      done.runs.back().makespan / simulated, slower, median / done.played(slower).makespan);
}

void print_table(std::vector<Case>& cases) {
  fmt::print(
      "| method | order | ranks | rounds | simulated s | measured s (median of {}) | best ratio | "
      "median ratio | worst ratio | waits, over what was asked for | median ratio, those simulated "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      kRounds);
  for (Case& each : cases) print(each);
}

}  // namespace
}  // namespace heddle

int main(int, char** arguments) {
  using namespace heddle;
  measure_in_turns(
      arguments[0], make_cases(), kRounds,
      [](const Case& each, World& world) { return measure(each, world); }, print_table);
}
