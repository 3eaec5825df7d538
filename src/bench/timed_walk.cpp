#include "bench/timed_walk.h"

#include <sys/prctl.h>

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace heddle {
namespace {

class TimedWalk : public ContextWalk {
 public:
  TimedWalk(const Setting& setting, std::vector<PieceTensors> own, Communicator& ranks, Ctx& ctx,
            double seconds_per_head_pair)
      : ContextWalk(setting, std::move(own), ranks, ctx), seconds_(seconds_per_head_pair) {}

  double waited() const { return waited_; }

 protected:
  void compute(const TileCall& call) override {
    const Stopwatch watch;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(seconds_ * static_cast<double>(head_pairs(call))));
    waited_ += watch.seconds();
  }

 private:
  double seconds_, waited_ = 0.0;
};

}  // namespace

double TimedPass::run(double seconds_per_head_pair, World& world, Ctx& ctx) const {
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

void wake_in_time() { ::prctl(PR_SET_TIMERSLACK, 1UL); }

}  // namespace heddle
