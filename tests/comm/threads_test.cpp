#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

using testing::CommCase;
using namespace std::chrono_literals;

class Threads : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Threads, CollectivesEqualAPlainLoop) {
  run_ranks(ranks(), [](World& world) { testing::check_collectives(world, false); });
}
TEST_P(Threads, CollectivesInTheBackgroundEqualAPlainLoop) {
  run_ranks(ranks(), [](World& world) { testing::check_collectives(world, true); });
}
TEST_P(Threads, MessagesArriveInOrderPerTag) { run_ranks(ranks(), testing::check_messages); }
TEST_P(Threads, ReceivesMayBePostedFirst) { run_ranks(ranks(), testing::check_early_receives); }
TEST_P(Threads, SplitsByColorAndKey) { run_ranks(ranks(), testing::check_split); }
TEST_P(Threads, GroupsWorkAtTheSameTime) { run_ranks(ranks(), testing::check_overlap); }

TEST_P(Threads, SumsAreMadeInTheOrderOfRanksWhateverTheCut) {
  constexpr std::int64_t kCount = 1001;
  std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks()));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 1000);
  for (auto& list : values) {
    for (std::int64_t i = 0; i < kCount; ++i) list.push_back(normal(random));
  }
  std::vector<float> want = values[0];
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    for (std::size_t i = 0; i < kCount; ++i) want[i] += values[rank][i];
  }
  for (const std::int64_t cut : {kCount, std::int64_t{1}, std::int64_t{77}, std::int64_t{500}}) {
    run_ranks(ranks(), [&](World& world) {
      CommCase c{.world = world};
      const Tensor data = c.memory.alloc({kCount}, DType::f32, MemoryTag::communication);
      const auto& own = values[static_cast<std::size_t>(world.rank())];
      std::copy(own.begin(), own.end(), data.data<float>());
      for (std::int64_t at = 0; at < kCount; at += cut) {
        c.all()
            .all_reduce(data.slice(0, at, std::min(kCount, at + cut)), ReduceOp::sum, c.stream)
            .wait(c.stream);
      }
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(data.data<float>()[i]),
                  std::bit_cast<std::uint32_t>(want[i]));
      }
    });
  }
}

TEST(ThreadRanks, ASendDoesNotWaitAndHoldsItsTensor) {
  run_ranks(2, [](World& world) {
    CommCase c{.world = world};
    if (world.rank() == 0) {
      Work work;
      {
        const Tensor data = testing::filled(c, 5, DType::f32, 3);
        work = c.all().send(data, 1, c.stream);
      }
      EXPECT_FALSE(work.done());
      EXPECT_GT(total(c.memory.stats().live), 0U) << "the message is held";
      c.all().barrier();
      work.wait(c.stream);
      EXPECT_TRUE(work.done());
      EXPECT_EQ(total(c.memory.stats().live), 0U) << "and released when it was taken";
    } else {
      c.all().barrier();
      const Tensor data = c.memory.zeros({5}, DType::f32, MemoryTag::communication);
      c.all().recv(data, 0, c.stream).wait(c.stream);
      EXPECT_EQ(testing::load(data, 4), testing::value_at(3, 4));
    }
  });
}

TEST(ThreadRanks, BackgroundCallsHoldTheirTensorsUntilTheyEnd) {
  run_ranks(2, [](World& world) {
    CommCase c{.world = world};
    const auto other = c.all().split(0, world.rank());
    other->run_in_background(true);
    const Work work =
        other->all_reduce(testing::filled(c, 5, DType::f32, 3), ReduceOp::sum, c.stream);
    work.wait(c.stream);
    EXPECT_EQ(total(c.memory.stats().live), 0U);
  });
}

/// The message of the Error(peer) that `body` throws.
std::string peer_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return error.message();
  }
  return "no failure";
}

TEST(ThreadRanks, TheFirstFailureIsRethrownAndStopsTheOthers) {
  for (const bool background : {false, true}) {
    std::atomic<int> stopped = 0;
    const auto run = [&] {
      run_ranks(4, [&](World& world) {
        CommCase c{.world = world};
        const auto other = c.all().split(0, world.rank());
        other->run_in_background(background);
        if (world.rank() == 2) fail(ErrorCode::data, "corpus.bin is torn");
        EXPECT_EQ(peer_error([&] {
                    const Tensor data = testing::filled(c, 5, DType::f32, 3);
                    other->all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
                  }),
                  "rank 2 stopped: corpus.bin is torn");
        ++stopped;
        EXPECT_EQ(peer_error([&] { c.all().barrier(); }), "rank 2 stopped: corpus.bin is torn");
      });
    };
    try {
      run();
      FAIL() << "no failure";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_EQ(error.message(), "corpus.bin is torn");
    }
    EXPECT_EQ(stopped, 3);
  }
}

TEST(ThreadRanks, AFailureStopsThoseWhoWaitForAMessage) {
  EXPECT_THROW(run_ranks(3,
                         [&](World& world) {
                           CommCase c{.world = world};
                           const Tensor data = testing::filled(c, 5, DType::f32, 3);
                           if (world.rank() == 1) {
                             std::this_thread::sleep_for(20ms);
                             throw std::runtime_error("boom");
                           }
                           const Work work = world.rank() == 0 ? c.all().recv(data, 1, c.stream)
                                                               : c.all().send(data, 1, c.stream);
                           EXPECT_EQ(peer_error([&] { work.wait(c.stream); }),
                                     "rank 1 stopped: boom");
                         }),
               std::runtime_error);
}

TEST(ThreadRanks, AFailingRankLeavesItsBackgroundCallsBehind) {
  EXPECT_THROW(run_ranks(2,
                         [&](World& world) {
                           CommCase c{.world = world};
                           const auto other = c.all().split(0, world.rank());
                           other->run_in_background(true);
                           if (world.rank() == 1) {
                             static_cast<void>(other->all_reduce(
                                 testing::filled(c, 5, DType::f32, 3), ReduceOp::sum, c.stream));
                             throw std::runtime_error("boom");
                           }
                           EXPECT_EQ(peer_error([&] { c.all().barrier(); }),
                                     "rank 1 stopped: boom");
                         }),
               std::runtime_error);
}

TEST(ThreadRanks, DifferentCallsAreFoundAtOnce) {
  const auto run = [](const std::function<void(CommCase&)>& odd) {
    return peer_error([&] {
      run_ranks(4, [&](World& world) {
        CommCase c{.world = world};
        c.all().barrier();
        if (world.rank() == 1) {
          odd(c);
        } else {
          const Tensor data = testing::filled(c, 6, DType::f32, 3);
          c.all().all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
        }
      });
    });
  };
  const std::string others = " while ranks 0, 2, 3 are in all_reduce #2 of f32 [6]";
  const std::string start = "ranks make different calls in one group: rank 1 is in ";
  EXPECT_EQ(run([](CommCase& c) { c.all().barrier(); }), start + "barrier #2" + others);
  EXPECT_EQ(run([](CommCase& c) {
              const Tensor data = testing::filled(c, 7, DType::f32, 3);
              c.all().all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
            }),
            start + "all_reduce #2 of f32 [7]" + others);
  EXPECT_EQ(run([](CommCase& c) {
              const Tensor data = testing::filled(c, 6, DType::i32, 3);
              c.all().all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
            }),
            start + "all_reduce #2 of i32 [6]" + others);
  EXPECT_EQ(run([](CommCase& c) {
              const Tensor data = testing::filled(c, 6, DType::f32, 3);
              c.all().all_reduce(data, ReduceOp::max, c.stream).wait(c.stream);
            }),
            start + "all_reduce #2 of f32 [6] with max" + others);
}

TEST(ThreadRanks, DifferentCallsAreFoundWhenTheOthersNeverCome) {
  EXPECT_EQ(peer_error([] {
              run_ranks(4, [](World& world) {
                CommCase c{.world = world};
                const Tensor data = testing::filled(c, 2 + world.rank(), DType::f32, 3);
                if (world.rank() < 2) {
                  c.all().all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
                }
              });
            }),
            "ranks make different calls in one group: rank 1 is in all_reduce #1 of f32 [3] while "
            "rank 0 is in all_reduce #1 of f32 [2]");
}

TEST(ThreadRanks, AMessageOfAnotherSizeIsRefused) {
  EXPECT_EQ(peer_error([] {
              run_ranks(2, [](World& world) {
                CommCase c{.world = world};
                const Tensor data = testing::filled(c, 2 + world.rank(), DType::f32, 3);
                const Work work = world.rank() == 0 ? c.all().send(data, 1, c.stream)
                                                    : c.all().recv(data, 0, c.stream);
                work.wait(c.stream);
              });
            }),
            "rank 0 sends f32 [2] to rank 1, which expects f32 [3]");
}

TEST(ThreadRanks, AbortTellsEveryoneWhy) {
  EXPECT_EQ(peer_error([] {
              run_ranks(3, [](World& world) {
                if (world.rank() == 2) {
                  world.abort("the disk is full");
                  world.abort("later");
                } else {
                  world.all().barrier();
                }
              });
            }),
            "rank 2 stopped: the disk is full");
}

TEST(ThreadRanks, CountOnDryStreamsWithoutMeeting) {
  ThreadWorld threads(4);
  Memory memory(Memory::Mode::dry);
  Stream dry = Stream::dry();
  Communicator& all = threads.world(3).all();
  const Tensor data = memory.alloc({1000}, DType::f32, MemoryTag::communication);
  all.all_reduce(data, ReduceOp::sum, dry).wait(dry);
  all.recv(data, 1, dry).wait(dry);
  EXPECT_EQ(all.counts().by_op[static_cast<std::size_t>(CommOp::all_reduce)].payload_bytes, 4000);
  EXPECT_EQ(all.counts().by_op[static_cast<std::size_t>(CommOp::recv)].calls, 1);
}

}  // namespace
}  // namespace heddle
