#include <gtest/gtest.h>

#include <thread>

#include "faults/lost_rank.h"
#include "train/small_rank.h"

// A rank is lost while it shares attention with others: four processes train over TCP, and one of
// them gets a signal inside a round.

namespace heddle {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4, kRound = 1;
constexpr auto kLimit = 3s;  // without a sign of life

struct Loss {
  int rank, signal;
  const char *pass, *unit;
  std::string found;  ///< what the verdict begins with
};

/// Raises the signal before the rank's first message of that round, once all others have come so
/// far that they wait for it.
void lose_in_round(FlightRecorder& flight, const Loss& loss) {
  flight.set_hook([loss](const CommCall& call) {
    const CommTag& tag = call.tag;
    if (call.op == CommOp::send && tag.attention_round == kRound &&
        tag.what == std::string(loss.pass) && tag.unit && *tag.unit == loss.unit) {
      std::this_thread::sleep_for(1s);
      std::raise(loss.signal);
    }
    return true;
  });
}

void train_and_lose(World& world, const Loss& loss) {
  Rank rank({"cp4", kRanks, {.cp = kRanks, .context = ContextMethod::ring}}, world);
  rank.train(0);
  if (world.rank() == loss.rank) lose_in_round(world.flight(), loss);
  for (std::int64_t step = 1; step < 100; ++step) rank.train(step);
}

TEST(RankLostInAttention, IsNamedWithLayerPassRoundAndPeer) {
  for (const Loss& loss : std::vector<Loss>{
           {2, SIGKILL, "F", "block 1", "the process of rank 2 is gone"},
           {3, SIGKILL, "BW", "block 2", "the process of rank 3 is gone"},
           {0, SIGKILL, "F", "block 3", "the process of rank 0 is gone"},
           {1, SIGSTOP, "BW", "block 0", "rank 1 has given no sign of life for [0-9.]+ s"},
           {0, SIGSTOP, "F", "block 2", "rank 0 has given no sign of life for [0-9.]+ s"}}) {
    SCOPED_TRACE(fmt::format("signal {} to rank {}", loss.signal, loss.rank));
    const testing::Ends ends = testing::run_tcp_processes(
        kRanks, [&](World& world) { train_and_lose(world, loss); }, kLimit);
    testing::expect_lost(ends, loss.rank, loss.signal,
                         fmt::format("{}; rank [0-3] waits for it in (recv|send) #[0-9]+ of cp "
                                     "(from|to) rank {} \\(f32 \\[[0-9]+\\], {} of {}, micro-batch "
                                     "[0-9]+, round {} of attention\\)\n",
                                     loss.found, loss.rank, loss.pass, loss.unit, kRound));
  }
}

}  // namespace
}  // namespace heddle
