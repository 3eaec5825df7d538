// How much longer a pipeline takes than its schedule says. Stages are timed waits, so whatever is
// above the simulated time is the executor's, the communicator's, and the system's, which wakes a
// thread later than it asked for: the last column is against a simulation with the waits as long as
// they really were on average. On a busy machine start it with real-time priority:
//
//     chrt -f 10 executor_bench > table.md
//
// Ranks are threads; under mpirun (-n 4 or -n 8) they are processes.

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "in_turns.h"
#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

constexpr int kRounds = 7;
/// Of every stage, in seconds. Messages of this size are copied while the stages wait.
constexpr StageTimes kTimes{.f = 0.010, .b = 0.011, .w = 0.010, .hop = 0.0};
constexpr std::int64_t kMessageFloats = 64 * 1024;

class WaitingStage : public Stage {
 public:
  explicit WaitingStage(Memory& memory, int stages) : memory_(memory), stages_(stages) {}

  Tensor compute(const StepOp& op, const Tensor&) override {
    const Act act = op.action->act;
    const int stage = op.action->stage;
    if (act == Act::f) wait(kTimes.f);
    if (act == Act::b) wait(kTimes.b);
    if (act == Act::w) wait(kTimes.w);
    if (act == Act::bw) wait(kTimes.b + kTimes.w);
    const bool goes_on = act == Act::f ? stage + 1 < stages_ : act != Act::w && stage > 0;
    return goes_on ? boundary(0) : Tensor();
  }
  Tensor boundary(int) override {
    return memory_.alloc({kMessageFloats}, DType::f32, MemoryTag::activations);
  }
  void perform(const StepOp&) override {}

  /// By how much a wait was longer than asked for, on average.
  double mean_delay() const { return delay_ / waits_; }

 private:
  void wait(double seconds) {
    const Stopwatch watch;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    delay_ += watch.seconds() - seconds;
    ++waits_;
  }

  Memory& memory_;
  const int stages_;
  double delay_ = 0.0;
  int waits_ = 0;
};

/// In seconds.
struct Measured {
  double makespan = 0.0;  ///< from the common start to the end of the last computation of any rank
  double mean_delay = 0.0;
};

/// Every rank calls it and gets the same.
Measured measure(const Schedule& schedule, World& world) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // wake up when asked to, not within 50 microseconds
  Memory memory;
  Stream stream(1);
  WaitingStage stage(memory, schedule.stages());
  double own = 0.0;
  world.all().barrier();
  execute(schedule, plain_units(schedule), {}, world.all(), stage, stream,
          [&](const Action& action, double, double end) {
            const bool computes = action.act <= Act::bw;
            if (computes) own = std::max(own, end);
          });
  return {.makespan = world.all().combine(own, ReduceOp::max),
          .mean_delay = world.all().combine(stage.mean_delay(), ReduceOp::sum) / world.size()};
}

/// The makespan when every action takes `delay` longer.
double simulate(const Schedule& schedule, double delay) {
  const auto& first = schedule.by_rank[0];
  const bool has_w = std::ranges::any_of(first, [](const Action& a) { return a.act == Act::w; });
  StageTimes times = kTimes;
  times.f += delay;
  times.b += delay;
  if (has_w) times.w += delay;
  return play(schedule, std::vector(static_cast<std::size_t>(schedule.stages()), times)).makespan;
}

struct Case {
  const char* name;
  int microbatches;
  Schedule schedule;
  std::vector<Measured> runs = {};

  int ranks() const { return static_cast<int>(schedule.by_rank.size()); }
};

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (const int ranks : {4, 8}) {
    for (const char* name : {"1f1b", "interleaved", "zb-h2", "zb-v", "v-half"}) {
      const int microbatches = 4 * ranks, chunks = std::string_view(name) == "interleaved" ? 2 : 1;
      cases.push_back({name, microbatches,
                       lower(make_schedule(pipeline_named(name), {ranks, microbatches, chunks}))});
    }
  }
  return cases;
}

void print(Case& done) {
  std::ranges::sort(done.runs, {}, &Measured::makespan);
  const double simulated = simulate(done.schedule, 0.0);
  const auto& [median, delay] = done.runs[kRounds / 2];
  fmt::print(
      "| {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} | {:.3f} |\n",
      done.name, done.ranks(), done.microbatches, done.schedule.stages(), simulated, median,
      done.runs.front().makespan / simulated, median / simulated,
      done.runs.back().makespan / simulated, 1e3 * delay, median / simulate(done.schedule, delay));
}

void print_table(std::vector<Case>& cases) {
  fmt::print(
      "| schedule | ranks | micro-batches | stages | simulated s | measured s (median of {}) | "
      "best ratio | median ratio | worst ratio | mean delay of a wait, ms | "
      "median ratio, delays simulated |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      kRounds);
  for (Case& each : cases) print(each);
}

}  // namespace
}  // namespace heddle

int main(int, char** arguments) {
  using namespace heddle;
  measure_in_turns(
      arguments[0], make_cases(), kRounds,
      [](const Case& each, World& world) { return measure(each.schedule, world); }, print_table);
}
