// Several connections between two ranks that share large messages, and how many are chosen.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/tcp/tcp_backend.h"
#include "comm/tcp/tcp_links.h"
#include "comm/tcp/tcp_measure.h"
#include "comm/tcp/tcp_pacing.h"
#include "comm/tcp/tcp_stripes.h"
#include "comm/tcp/tcp_widen.h"
#include "comm/tcp_listener.h"
#include "comm/tcp_processes.h"
#include "comm/training_calls.h"
#include "links/network.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

/// Both ends of some connections.
std::array<std::vector<Socket>, 2> connections(int count) {
  std::array<std::vector<Socket>, 2> ends;
  for (int i = 0; i < count; ++i) {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ends[0].emplace_back(pair[0]);
    ends[1].emplace_back(pair[1]);
  }
  return ends;
}

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Two ranks in this process, joined by one connection and some stripes.
struct Pair {
  explicit Pair(int stripes, bool is_far = false) {
    auto first = connections(1), others = connections(stripes);
    for (std::size_t rank : {0U, 1U}) {
      for (const Socket& socket : others[rank]) descriptors[rank].push_back(socket.get());
      std::vector<TcpLink> given(2);
      given[1 - rank] = {.socket = std::move(first[rank][0]),
                         .stripes = std::move(others[rank]),
                         .is_far = is_far};
      links[rank] = std::make_shared<TcpLinks>(static_cast<int>(rank), std::move(given),
                                               std::make_shared<WorldFailure>());
    }
  }
  std::array<std::vector<int>, 2> descriptors;  // of the stripes
  std::array<std::shared_ptr<TcpLinks>, 2> links;
};

TEST(TcpStripes, MessagesOfAllSizesArriveWholeAndInOrderOnTheirLines) {
  const Pair pair(5);
  const std::array<std::size_t, 6> sizes = {3'000'001, 0, 65'536, 65'535, 70'000, 1};
  std::vector<std::vector<std::byte>> messages;
  for (int i = 0; i < 24; ++i) {
    messages.push_back(
        random_bytes(sizes[static_cast<std::size_t>(i) % sizes.size()], static_cast<unsigned>(i)));
  }
  const auto line = [](int i, int peer) {
    return TcpLinks::Line{.group = 7, .tag = i % 2, .peer = peer};
  };
  std::thread sender([&] {
    for (int i = 0; i < 24; ++i) {
      const auto& message = messages[static_cast<std::size_t>(i)];
      pair.links[0]->send_now(line(i, 1), message.data(), message.size());
    }
  });
  // Half of them are awaited before they come, half are asked for late, in turns of lines.
  for (int i = 0; i < 24; ++i) {
    if (i == 12) sender.join();
    const auto& message = messages[static_cast<std::size_t>(i)];
    std::vector<std::byte> read(message.size());
    pair.links[1]->recv_now(line(i, 0), read.data(), read.size());
    EXPECT_TRUE(read == message) << i;
  }
}

/// Rank 0 as a communicator, whose other rank is what the test sends and receives.
struct FarCaller {
  FarCaller()
      : backend(std::make_shared<TcpBackend>(
            0, std::make_shared<Group>(Group{.ranks = {0, 1}, .id = 9}),
            std::make_shared<TcpSession>(TcpSession{.failure = std::make_shared<WorldFailure>(),
                                                    .links = pair.links[0],
                                                    .stop_world = {}}))),
        calls(backend, std::make_shared<FlightRecorder>(), "far") {
    calls.run_in_background(true);
  }
  /// The other rank's end of what belongs to a call.
  static TcpLinks::Line line(int call) { return {.group = 9, .tag = -1 - call, .peer = 0}; }
  Tensor tensor(float value) {
    const Tensor made = memory.alloc({4}, DType::f32, MemoryTag::communication);
    std::ranges::fill(made.host<float>(), value);
    return made;
  }
  float heard(int call) {
    std::vector<float> values(4);
    pair.links[1]->recv_now(line(call), reinterpret_cast<std::byte*>(values.data()), 16);
    return values[0];
  }
  void say(int call, float value) {
    const std::vector<float> values(4, value);
    pair.links[1]->send_now(line(call), reinterpret_cast<const std::byte*>(values.data()), 16);
  }

  Pair pair{0, true};
  Memory memory;
  Stream stream{1};
  std::shared_ptr<TcpBackend> backend;
  Communicator calls;
};

TEST(FarRanks, DoNotWaitForOneCallBeforeTheNextLeaves) {
  FarCaller rank;
  const Tensor a = rank.tensor(1), b = rank.tensor(2);
  const Work first = rank.calls.all_reduce(a, ReduceOp::sum, rank.stream);
  const Work second = rank.calls.all_reduce(b, ReduceOp::sum, rank.stream);
  EXPECT_EQ(rank.heard(2), 2);  // although nobody has answered the first
  rank.say(2, 20);
  second.wait(rank.stream);
  EXPECT_EQ(b.host<float>()[0], 22);
  EXPECT_EQ(rank.heard(1), 1);
  rank.say(1, 10);
  first.wait(rank.stream);
  EXPECT_EQ(a.host<float>()[0], 11);
}

TEST(FarRanks, DoWhatLiesBetweenTwoCallsBetweenThem) {
  FarCaller rank;
  const Tensor a = rank.tensor(1), b = rank.tensor(2), c = rank.tensor(3);
  const Work first = rank.calls.all_reduce(a, ReduceOp::sum, rank.stream);
  rank.calls.then([a, b](Stream&) { b.host<float>()[0] = 100 * a.host<float>()[0]; }, rank.stream);
  const Work second = rank.calls.all_reduce(b, ReduceOp::sum, rank.stream);
  const Work third = rank.calls.all_reduce(c, ReduceOp::sum, rank.stream);
  EXPECT_EQ(rank.heard(3), 3);  // which needs neither
  rank.say(1, 10);
  EXPECT_EQ(rank.heard(2), 1100);
  rank.say(2, 0);
  rank.say(3, 0);
  for (const Work* work : {&first, &second, &third}) work->wait(rank.stream);
}

TEST(TcpStripes, WhenOneConnectionOfSeveralDiesBothSidesNameTheRank) {
  const Pair pair(4);
  const auto large = random_bytes(4 << 20, 1);
  std::promise<std::string> received;
  std::vector<std::byte> read(large.size() * 16);
  pair.links[1]->recv({.group = 1, .tag = 0, .peer = 0}, read.data(), read.size(),
                      [&](const std::exception_ptr& problem) {
                        try {
                          if (problem) std::rethrow_exception(problem);
                          received.set_value("");
                        } catch (const Error& error) {
                          received.set_value(error.message());
                        }
                      });
  shutdown(pair.descriptors[1][2], SHUT_RDWR);
  auto sent = std::async(std::launch::async, [&] {
    try {
      for (int i = 0; i < 100; ++i) {
        pair.links[0]->send_now({.group = 1, .tag = 1, .peer = 1}, large.data(), large.size());
      }
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  });
  EXPECT_EQ(received.get_future().get(), "rank 0 is gone");
  EXPECT_EQ(sent.get(), "rank 1 is gone");
}

TEST(TcpStripes, PiecesThatDoNotFitAreNotWritten) {
  auto ends = connections(1);
  const int far = ends[1][0].get();
  TcpStripes stripes(std::move(ends[0]));
  const std::uint64_t piece[] = {0x6563656970e1dd48ULL, 0, 90,
                                 20};  // magic, message, offset, bytes
  ASSERT_TRUE(write_bytes(far, piece, sizeof(piece)));
  std::vector<std::byte> place(100);
  stripes.read(
      [&](std::uint64_t) {
        return TcpStripes::Place{place.data(), place.size()};
      },
      [](std::uint64_t, std::size_t) { ADD_FAILURE(); });
}

/// What the ranks of a world with so many connections between two of them find.
std::vector<std::string> run_wide(int ranks, int sockets, const std::function<void(World&)>& body) {
  const TcpListener meeting = listen_on(0, ranks);
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const TcpPlace place{.rank = rank,
                           .size = ranks,
                           .port = meeting.port,
                           .listening = rank == 0 ? meeting.socket : -1,
                           .token = Token("the token of the test", "the test"),
                           .sockets = sockets};
      try {
        run_tcp_rank(place, body);
      } catch (const Error& error) {
        failures[static_cast<std::size_t>(rank)] = error.message();
      }
    });
  }
  threads.clear();
  return failures;
}

TEST(TcpWide, SumsOfLargeTensorsEqualThoseOverOneConnectionBitForBit) {
  constexpr std::int64_t kCount = 300'007;
  const auto values_of = [](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<float> normal;
    std::vector<float> values(kCount);
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto sums = [&](int sockets) {
    std::mutex mutex;
    std::map<int, std::vector<float>> by_rank;
    const auto failures = run_wide(3, sockets, [&](World& world) {
      Memory memory;
      Stream stream(1);
      const Tensor values = memory.alloc({kCount}, DType::f32, MemoryTag::communication);
      std::ranges::copy(values_of(world.rank()), values.data<float>());
      world.all().all_reduce(values, ReduceOp::sum, stream).wait(stream);
      const std::lock_guard lock(mutex);
      by_rank[world.rank()] = {values.data<float>(), values.data<float>() + kCount};
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
    return by_rank;
  };
  const auto wide = sums(4);
  EXPECT_EQ(wide, sums(1));
  // In the order of ranks, whoever made which part of them.
  std::vector<float> expected = values_of(0);
  for (const int rank : {1, 2}) {
    const std::vector<float> more = values_of(rank);
    for (std::size_t i = 0; i < more.size(); ++i) expected[i] += more[i];
  }
  for (const auto& [rank, sum] : wide) EXPECT_EQ(sum, expected) << rank;
}

TEST(TcpWide, CollectivesMessagesAndSplitsWorkOverSeveralConnections) {
  for (const auto& body : std::vector<std::function<void(World&)>>{
           [](World& world) { testing::check_collectives(world, true); }, testing::check_messages,
           testing::check_split, testing::check_overlap}) {
    for (const std::string& failure : run_wide(3, 2, body)) EXPECT_EQ(failure, "");
  }
}

TEST(TcpWide, RankZeroNamesARankThatWasKilledWhileItSent) {
  const testing::Ends ends = testing::run_tcp_processes(
      3,
      [](World& world) {
        Memory memory;
        Stream stream(1);
        const Tensor large = memory.alloc({4 << 20}, DType::f32, MemoryTag::communication);
        world.all().barrier();
        for (int i = 0; i < 100; ++i) {
          if (world.rank() == 2 && i == 2) std::raise(SIGKILL);
          world.all().all_reduce(large, ReduceOp::sum, stream).wait(stream);
        }
      },
      std::chrono::duration<double>(0), 3);
  ASSERT_EQ(ends.told.size(), 1U);
  EXPECT_NE(ends.told.at(0).find("the process of rank 2 is gone"), std::string::npos);
  EXPECT_EQ(ends.statuses, (std::vector<int>{4, 4, 128 + SIGKILL}));
}

TEST(TcpWide, NearRanksGetNoFurtherConnections) {
  const TcpListener meeting = listen_on(0, 2);
  const auto widened = [&](int rank) {
    const TcpPlace place{.rank = rank,
                         .size = 2,
                         .port = meeting.port,
                         .listening = rank == 0 ? meeting.socket : -1};
    return widen_links(place, join_ranks(place, {}));
  };
  auto other = std::async(std::launch::async, widened, 1);
  const auto links = widened(0);
  EXPECT_TRUE(links[1].stripes.empty());
  EXPECT_FALSE(links[1].is_far);
  EXPECT_TRUE(other.get()[0].stripes.empty());
}

/// Of two ranks that have no others.
int chosen_alone(const std::vector<MeasuredStage>& pair, bool has_wide_area_control) {
  AroundPair around;
  for (int rank = 0; rank < 2; ++rank) around.add(pair);
  return choose_sockets(pair, around, has_wide_area_control);
}

TEST(ChoosingSockets, StopsWhereMoreGainLittle) {
  EXPECT_EQ(chosen_alone({{1, 95}, {16, 99}}, true), 0);
  EXPECT_EQ(chosen_alone({{1, 50}, {16, 92}}, true), 16);
}

TEST(ChoosingSockets, OfPairsThatShareLinksCountsWhatAllGain) {
  const std::vector<MeasuredStage> lucky = {{1, 26}, {16, 36}}, unlucky = {{1, 34}, {16, 24}};
  AroundPair around;
  for (const auto& pair : {lucky, lucky, unlucky, unlucky}) around.add(pair);
  EXPECT_EQ(choose_sockets(lucky, around, true), 0);
  EXPECT_EQ(choose_sockets(unlucky, around, true), 0);
  // One that loses packets, beside others that do not.
  const std::vector<MeasuredStage> lossy = {{1, 1}, {16, 25}}, clean = {{1, 50}, {16, 40}};
  around = {};
  for (const auto& pair : {lossy, lossy, clean, clean}) around.add(pair);
  EXPECT_EQ(choose_sockets(lossy, around, true), 16);
  // One that stopped early carries on as it did.
  around = {};
  around.add({{1, 10}, {8, 10}});
  EXPECT_EQ(around.bytes_per_second, (std::array<double, 4>{10, 10, 10, 10}));
}

TEST(ChoosingSockets, TakesMoreWhereEveryLossSlowsAConnectionDown) {
  EXPECT_EQ(chosen_alone({{1, 1}, {8, 20}, {32, 95}, {128, 96}}, false), 128);
  EXPECT_EQ(chosen_alone({{1, 50}, {8, 92}, {32, 95}}, false), 32);
  EXPECT_EQ(chosen_alone({{1, 95}, {8, 96}}, false), 0);
}

TEST(Measuring, LeavesNothingInTheConnectionsAndBothSidesKnowTheSame) {
  auto first = connections(1), others = connections(stages_to_try(true).back());
  const auto measure = [&](std::size_t side) {
    return measure_pair(first[side][0], others[side], 0s, true);
  };
  auto other = std::async(std::launch::async, measure, 1);
  const auto one = measure(0), two = other.get();
  ASSERT_TRUE(one && two);
  ASSERT_EQ(one->size(), two->size());
  for (std::size_t i = 0; i < one->size(); ++i) {
    EXPECT_EQ((*one)[i].bytes_per_second, (*two)[i].bytes_per_second);
  }
  for (const auto& side : others) {
    for (const Socket& socket : side) {
      EXPECT_FALSE(is_readable(socket.get(), std::chrono::steady_clock::now()));
    }
  }
}

TEST(Measuring, EndsWhenTheOtherSideIsGone) {
  auto first = connections(1), others = connections(stages_to_try(true).back());
  first[1].clear();
  others[1].clear();
  EXPECT_FALSE(measure_pair(first[0][0], others[0], 0s, true));
}

/// Looks at connections that deliver so many bytes a second, one second after another.
struct PacedWay {
  void second(double rate, double round_trip) {
    delivered += rate;
    paced.look({.delivered = delivered, .round_trip = round_trip, .least_round_trip = 0.2}, 1.0);
  }
  double delivered = 0;
  PacedRate paced;
};

TEST(Pacing, HasNoLimitWhereRoundTripsStayShort) {
  PacedWay way;
  for (const double rate : {5e6, 9e6, 9e6, 2e6}) way.second(rate, 0.22);
  EXPECT_EQ(way.paced.limit(), 0.0);
}

TEST(Pacing, TakesTheRateThatIsDeliveredWhereAQueueGrowsAndTriesForMoreWhereItIsGone) {
  PacedWay way;
  way.second(0, 0.4);  // only remembers
  EXPECT_EQ(way.paced.limit(), 0.0);
  way.second(1e7, 0.4);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 1e7);
  way.second(1e7, 0.25);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 1.05e7);
  way.second(1e7, 0.2);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 1.25 * 1.05e7);
  way.second(9e6, 0.4);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 9e6);
}

TEST(Pacing, DoesNotLeaveTheWayToOthersWhoFillTheQueue) {
  PacedWay way;
  for (const double rate : {0.0, 1e7, 7e6, 5e6, 1e6}) way.second(rate, 0.5);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 8e6);
}

TEST(Pacing, APauseSaysNothingAboutTheWay) {
  PacedWay way;
  for (const double rate : {0.0, 1e7}) way.second(rate, 0.4);
  way.paced.forget();
  way.second(1e3, 0.4);
  EXPECT_DOUBLE_EQ(way.paced.limit(), 1e7);
}

/// One rank of two: chooses its connections, and exchanges a large message over them.
std::size_t stripes_of_rank(int rank, const std::vector<std::byte>& large, std::latch& ended) {
  const TcpPlace place{
      .rank = rank, .size = 2, .address = links::Network::address(0), .port = 29700};
  auto given = widen_links(place, join_ranks(place, {}));
  TcpLink& other = given[static_cast<std::size_t>(1 - rank)];
  EXPECT_TRUE(other.is_far);
  const std::size_t stripes = other.stripes.size();
  TcpLinks all(rank, std::move(given), std::make_shared<WorldFailure>());
  const TcpLinks::Line line{.group = 1, .tag = 1, .peer = 1 - rank};
  std::vector<std::byte> read(large.size());
  auto sent =
      std::async(std::launch::async, [&] { all.send_now(line, large.data(), large.size()); });
  all.recv_now(line, read.data(), read.size());
  sent.get();
  EXPECT_TRUE(read == large);
  ended.arrive_and_wait();  // nobody closes connections that another still uses
  return stripes;
}

TEST(Measuring, OverALongLinkThatLosesPacketsSeveralConnectionsAreChosenAndCarryMessages) {
  if (const auto missing = links::Network::missing()) GTEST_SKIP() << *missing;
  links::Network network({.statements = {"link rate=40mbit delay=20ms loss=2%"},
                          .sysctls = {"net.ipv4.tcp_congestion_control=reno"}});
  const auto large = random_bytes(1 << 20, 3);
  std::array<std::size_t, 2> stripes{};
  std::latch ended(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      // Threads that are started in the namespace stay in it.
      const links::Inside inside(network, rank);
      try {
        stripes[static_cast<std::size_t>(rank)] = stripes_of_rank(rank, large, ended);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        ended.count_down();
      }
    });
  }
  ranks.clear();
  EXPECT_GE(stripes[0], 8U);
  EXPECT_EQ(stripes[0], stripes[1]);
}

}  // namespace
}  // namespace heddle
