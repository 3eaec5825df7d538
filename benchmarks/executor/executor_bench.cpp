// How much longer a pipeline takes than its schedule says. Stages are timed waits, so whatever is
// above the simulated time is the executor's and the communicator's: messages, wake-ups, order.
//
//     executor_bench > table.md

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/threads/thread_world.h"
#include "engine/executor.h"
#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

constexpr int kRepetitions = 5;
/// Of every stage, in seconds. Messages of this size are copied while the stages wait.
constexpr StageTimes kTimes{.f = 0.010, .b = 0.011, .w = 0.010, .hop = 0.0};
constexpr std::int64_t kMessageFloats = 64 * 1024;

class WaitingStage : public Stage {
 public:
  explicit WaitingStage(Memory& memory, int stages) : memory_(memory), stages_(stages) {}

  Tensor forward(int stage, int, const Tensor&) override {
    wait(kTimes.f);
    return stage + 1 < stages_ ? boundary(0) : Tensor();
  }
  Tensor backward_input(int stage, int, const Tensor&) override {
    wait(kTimes.b);
    return stage > 0 ? boundary(0) : Tensor();
  }
  void backward_weight(int, int) override { wait(kTimes.w); }
  Tensor backward(int stage, int, const Tensor&) override {
    wait(kTimes.b + kTimes.w);
    return stage > 0 ? boundary(0) : Tensor();
  }
  Tensor boundary(int) override {
    return memory_.alloc({kMessageFloats}, DType::f32, MemoryTag::activations);
  }
  void reduce_grads() override {}
  void step() override {}

 private:
  static void wait(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  Memory& memory_;
  const int stages_;
};

/// From the common start to the end of the last computation of any rank, in seconds.
double measure(const Schedule& schedule) {
  std::mutex mutex;
  double makespan = 0.0;
  run_ranks(schedule.ranks(), [&](World& world) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // wake up when asked to, not within 50 microseconds
    Memory memory;
    Stream stream(1);
    WaitingStage stage(memory, schedule.stages());
    double own = 0.0;
    world.all().barrier();
    execute(schedule, world.all(), stage, stream, [&](const Action& action, double, double end) {
      const bool computes = action.act <= Act::bw;
      if (computes) own = std::max(own, end);
    });
    const std::lock_guard lock(mutex);
    makespan = std::max(makespan, own);
  });
  return makespan;
}

void run_case(const char* name, int ranks) {
  const int microbatches = 4 * ranks, chunks = std::string_view(name) == "interleaved" ? 2 : 1;
  const Schedule schedule = lower(make_schedule(name, {ranks, microbatches, chunks}));
  const std::vector<StageTimes> times(static_cast<std::size_t>(schedule.stages()), kTimes);
  const double simulated = play(schedule, times).makespan;
  std::vector<double> measured;
  for (int i = 0; i < kRepetitions; ++i) measured.push_back(measure(schedule));
  std::ranges::sort(measured);
  const double median = measured[kRepetitions / 2];
  fmt::print("| {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n", name, ranks,
             microbatches, schedule.stages(), simulated, median, measured.front() / simulated,
             median / simulated, measured.back() / simulated);
  std::fflush(stdout);
}

}  // namespace
}  // namespace heddle

int main() {
  fmt::print(
      "| schedule | ranks | micro-batches | stages | simulated s | measured s (median of {}) | "
      "best ratio | median ratio | worst ratio |\n|---|---|---|---|---|---|---|---|---|\n",
      heddle::kRepetitions);
  for (const int ranks : {4, 8}) {
    for (const char* name : {"1f1b", "interleaved", "zb-h2", "zb-v", "v-half"}) {
      heddle::run_case(name, ranks);
    }
  }
}
