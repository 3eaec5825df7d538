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
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "in_turns.h"
#include "parallel/sequence/context_walk.h"
#include "simulator/play_context.h"

namespace heddle {
namespace {

constexpr int kRounds = 5;
/// What both passes of a rank compute, if all compute alike.
constexpr double kSeconds = 0.6;

class TimedWalk : public ContextWalk {
 public:
  TimedWalk(const Setting& setting, std::vector<PieceTensors> own, Communicator& ranks, Ctx& ctx,
            double seconds_per_head_pair)
      : ContextWalk(setting, std::move(own), ranks, ctx), seconds_(seconds_per_head_pair) {}

  double waited() const { return waited_; }

 protected:
  void compute(const TileCall& call) override {
    const Stopwatch watch;
    const TokenRun queries{call.query_offset, call.queries.count, call.step};
    const TokenRun keys{call.key_offset, call.keys.count, call.step};
    const Tile tile{queries, keys, call.queries.heads, true};
    std::this_thread::sleep_for(
        std::chrono::duration<double>(seconds_ * static_cast<double>(head_pairs(tile))));
    waited_ += watch.seconds();
  }

 private:
  double seconds_, waited_ = 0.0;
};

/// A pass of one rank, with tensors for all that a piece may have.
class TimedPass {
 public:
  TimedPass(const ContextProgram& program, ContextPassKind kind, const ContextShape& shape)
      : program_(program), kind_(kind), head_dim_(shape.head_dim) {}

  /// Returns the seconds that the rank waited in place of computing.
  double run(double seconds_per_head_pair, World& world, Ctx& ctx) const {
    std::vector<PieceTensors> own;
    const int pieces = ContextProgram::kOwn * (program_.exchanges_heads ? 2 : 1);
    for (int i = 0; i < pieces; ++i) {
      const Piece& piece = program_.pieces[static_cast<std::size_t>(i)];
      const std::int64_t tokens = tokens_in(piece.tokens), heads = piece.heads.count;
      const auto rows = [&] { return ctx.workspace({1, tokens, heads, head_dim_}, DType::f32); };
      const auto statistics = [&] { return ctx.workspace({1, heads, tokens}, DType::f32); };
      own.push_back({.rows = {rows(), rows()}, .statistics = {statistics(), statistics()}});
    }
    const Tensor output = own[ContextProgram::kQueries].rows[0];
    TimedWalk walk({.program = program_,
                    .pass = kind_,
                    .head_dim = head_dim_,
                    .dtype = DType::f32,
                    .output = output},
                   std::move(own), world.all(), ctx, seconds_per_head_pair);
    walk.run();
    return walk.waited();
  }

 private:
  const ContextProgram& program_;
  const ContextPassKind kind_;
  const std::int64_t head_dim_;
};

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
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // wake up when asked to, not within 50 microseconds
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
