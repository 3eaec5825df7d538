#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "faults/lost_rank.h"
#include "train/small_rank.h"

// A rank is lost while rows travel to their experts or back: four processes train over TCP, and
// one of them gets a signal inside an exchange.

namespace heddle {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;
constexpr auto kLimit = 3s;  // without a sign of life

ModelSpec small_experts() {
  return model_spec(Json::parse(R"({"model_type": "mixtral", "hidden_size": 16,
      "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 32,
      "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
      "tie_word_embeddings": false})"),
                    "config");
}

struct Loss {
  int rank, signal;
  const char *pass, *unit;
  CommOp op;
  int call;           ///< which of the pass's calls of that kind over ep
  std::string found;  ///< what the verdict begins with
};

/// Raises the signal before the rank makes that call, once all others have come so far that they
/// wait for it.
void lose_in_exchange(FlightRecorder& flight, const Loss& loss) {
  flight.set_hook([loss, seen = std::make_shared<std::atomic<int>>(0)](const CommCall& call) {
    const CommTag& tag = call.tag;
    if (call.group_name == "ep" && call.op == loss.op && tag.what == std::string(loss.pass) &&
        tag.unit && *tag.unit == loss.unit && ++*seen == loss.call) {
      std::this_thread::sleep_for(1s);
      std::raise(loss.signal);
    }
    return true;
  });
}

void train_and_lose(World& world, const Loss& loss) {
  Rank rank({"ep4", kRanks, {.dp = kRanks, .ep = kRanks}}, world, {}, small_experts());
  rank.train(0);
  if (world.rank() == loss.rank) lose_in_exchange(world.flight(), loss);
  for (std::int64_t step = 1; step < 100; ++step) rank.train(step);
}

/// Counts, rows on their way there, rows on their way back, and gradients.
TEST(RankLostInExperts, IsNamedWithLayerPassAndPeer) {
  for (const Loss& loss : std::vector<Loss>{
           {2, SIGKILL, "F", "block 1", CommOp::all_gather, 1, "the process of rank 2 is gone"},
           {1, SIGKILL, "F", "block 0", CommOp::all_to_all, 1, "the process of rank 1 is gone"},
           {0, SIGKILL, "F", "block 2", CommOp::all_to_all, 2, "the process of rank 0 is gone"},
           {3, SIGKILL, "BW", "block 1", CommOp::all_to_all, 1, "the process of rank 3 is gone"},
           {2, SIGSTOP, "BW", "block 2", CommOp::all_to_all, 2,
            "rank 2 has given no sign of life for [0-9.]+ s"}}) {
    SCOPED_TRACE(fmt::format("signal {} to rank {}", loss.signal, loss.rank));
    const testing::Ends ends = testing::run_tcp_processes(
        kRanks, [&](World& world) { train_and_lose(world, loss); }, kLimit);
    testing::expect_lost(ends, loss.rank, loss.signal,
                         fmt::format("{}; rank [0-3] waits for it in {} #[0-9]+ of ep "
                                     "\\([a-z0-9]+ \\[[0-9, ]+\\], {} of {}, micro-batch 0\\)\n",
                                     loss.found, name_of(loss.op), loss.pass, loss.unit));
  }
}

}  // namespace
}  // namespace heddle
