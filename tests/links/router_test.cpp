#include "links/router.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace heddle::links {
namespace {

using std::chrono::milliseconds;

struct Arrival {
  std::string bytes;
  int from, to;
  Time at;
};

/// A router with a clock of its own.
struct Bench {
  explicit Bench(int ranks, const std::vector<std::string>& statements = {}, std::uint64_t seed = 1)
      : router(ranks, seed, [this](const Packet& packet) {
          arrivals.push_back({packet.bytes, packet.from, packet.to, now});
        }) {
    for (const auto& statement : statements) router.apply(statement);
  }
  void send(int from, int to, const std::string& bytes) { router.send({from, to, bytes}, now); }
  void run_until(Time end) {
    while (router.next() && *router.next() <= end) {
      now = *router.next();
      router.advance(now);
    }
    now = end;
  }
  std::vector<Time> times() const {
    std::vector<Time> times;
    for (const auto& arrival : arrivals) times.push_back(arrival.at);
    return times;
  }
  std::string texts() const {
    std::string texts;
    for (const auto& arrival : arrivals) texts += arrival.bytes[0];
    return texts;
  }

  Time now{0};
  std::vector<Arrival> arrivals;
  Router router;
};

const std::string kKilobyte(1000, 'x');  // 1 ms at 8 Mbit/s

TEST(Router, PacketsLeaveOneAfterTheOtherAndTravelTogether) {
  Bench bench(2, {"link 0,1 rate=8mbit delay=25ms"});
  for (int i = 0; i < 3; ++i) bench.send(0, 1, kKilobyte);
  bench.run_until(milliseconds(100));
  EXPECT_EQ(bench.times(),
            (std::vector<Time>{milliseconds(26), milliseconds(27), milliseconds(28)}));
}

TEST(Router, ALinkThatWasIdleSavesNothingUp) {
  Bench bench(2, {"link rate=8mbit"});
  bench.run_until(milliseconds(500));
  for (int i = 0; i < 2; ++i) bench.send(0, 1, kKilobyte);
  bench.run_until(milliseconds(600));
  EXPECT_EQ(bench.times(), (std::vector<Time>{milliseconds(501), milliseconds(502)}));
}

TEST(Router, AQueueDropsWhatWouldWaitLonger) {
  for (const char* queue : {"queue=4ms", "queue=4kb"}) {
    Bench bench(2, {"link rate=8mbit", std::string("link 0,1 ") + queue});
    for (int i = 0; i < 20; ++i) bench.send(0, 1, kKilobyte);
    bench.run_until(milliseconds(100));
    EXPECT_EQ(bench.arrivals.size(), 5u) << queue;  // one leaves, four wait
  }
}

TEST(Router, DirectionsHaveSettingsOfTheirOwn) {
  Bench bench(2, {"link delay=10ms", "oneway 1,0 delay=30ms"});
  bench.send(0, 1, "a");
  bench.send(1, 0, "b");
  bench.run_until(milliseconds(100));
  EXPECT_EQ(bench.times(), (std::vector<Time>{milliseconds(10), milliseconds(30)}));
}

TEST(Router, SitesShareTheLinkBetweenThemAndNotThoseInside) {
  Bench bench(4, {"link rate=80mbit", "link 0-1,2-3 rate=8mbit delay=5ms"});
  bench.send(0, 2, kKilobyte);
  bench.send(1, 3, kKilobyte);
  bench.send(2, 0, kKilobyte);
  bench.send(0, 1, kKilobyte);
  bench.run_until(milliseconds(100));
  ASSERT_EQ(bench.arrivals.size(), 4u);
  EXPECT_EQ(bench.times(), (std::vector<Time>{std::chrono::microseconds(100), milliseconds(6),
                                              milliseconds(6), milliseconds(7)}));
  EXPECT_EQ(bench.arrivals[0].to, 1);
  EXPECT_EQ(bench.arrivals[3].to, 3);  // waited for 0 to 2, which the way back did not
}

TEST(Router, ANodeSharesItsRateAmongAllItsPeers) {
  Bench bench(3, {"node rate=8mbit"});
  bench.send(0, 1, kKilobyte);
  bench.send(0, 2, kKilobyte);
  bench.run_until(milliseconds(100));
  EXPECT_EQ(bench.times(), (std::vector<Time>{milliseconds(2), milliseconds(3)}));
  bench.arrivals.clear();
  bench.send(1, 0, kKilobyte);
  bench.send(2, 0, kKilobyte);
  bench.run_until(milliseconds(200));
  EXPECT_EQ(bench.times(), (std::vector<Time>{milliseconds(102), milliseconds(103)}));
}

TEST(Router, JitterKeepsTheOrderUnlessAskedNotTo) {
  for (const bool may_reorder : {false, true}) {
    Bench bench(2,
                {"link delay=5ms jitter=20ms reorder=" + std::string(may_reorder ? "yes" : "no")});
    std::string sent;
    for (char name = 'a'; name <= 'z'; ++name) {
      sent += name;
      bench.send(0, 1, {name});
    }
    bench.run_until(milliseconds(4));
    EXPECT_TRUE(bench.arrivals.empty());
    bench.run_until(milliseconds(25));
    EXPECT_EQ(bench.arrivals.size(), sent.size());
    EXPECT_EQ(bench.texts() == sent, !may_reorder);
  }
}

TEST(Router, TheSeedDecidesWhatIsLost) {
  const auto lost_of = [](std::uint64_t seed, const std::string& more) {
    Bench bench(2, {"link loss=10%" + more}, seed);
    std::string lost;
    for (int i = 0; i < 2000; ++i) {
      const auto before = bench.arrivals.size();
      bench.send(0, 1, "x");
      bench.run_until(bench.now + milliseconds(10));
      lost += bench.arrivals.size() == before ? '1' : '0';
    }
    return lost;
  };
  const std::string lost = lost_of(1, "");
  EXPECT_NEAR(static_cast<double>(std::count(lost.begin(), lost.end(), '1')), 200, 5 * 13.4);
  EXPECT_EQ(lost, lost_of(1, " jitter=3ms"));
  EXPECT_NE(lost, lost_of(2, ""));
}

TEST(Router, ACutSwallowsWhatIsUnderWayAndSparesOthers) {
  Bench bench(3, {"link delay=10ms"});
  bench.send(0, 1, "a");
  bench.send(0, 2, "b");
  bench.router.apply("cut 1");
  bench.send(1, 2, "c");
  bench.run_until(milliseconds(50));
  EXPECT_EQ(bench.texts(), "b");
  bench.router.apply("restore 1");
  bench.router.apply("cut 0,2");
  bench.send(0, 1, "d");
  bench.send(2, 0, "e");
  bench.run_until(milliseconds(100));
  EXPECT_EQ(bench.texts(), "bd");
}

TEST(Router, AChangeLeavesOtherSettingsAndOtherLinksAlone) {
  Bench bench(4, {"link delay=10ms", "link 0-1,2-3 delay=20ms"});
  bench.router.apply("link 0,2 rate=8mbit");  // no longer shared
  bench.send(0, 2, kKilobyte);
  bench.send(0, 3, kKilobyte);
  bench.send(0, 1, kKilobyte);
  bench.run_until(milliseconds(100));
  EXPECT_EQ(bench.times(),
            (std::vector<Time>{milliseconds(10), milliseconds(20), milliseconds(21)}));
}

TEST(Router, RefusesStatementsByTheWordThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lnk 0,1 rate=1mbit", "use node, out, in, link, oneway, cut or restore"},
      {"", "sets nothing"},
      {"link 0,1", "sets nothing"},
      {"link 0,1 rate", "'rate' is not a setting"},
      {"link 0,1 rate=fast", "'rate=fast'"},
      {"link 0,1 rate=-1mbit", "'rate=-1mbit'"},
      {"link 0,1 delay=25", "delay=25ms"},
      {"link 0,1 loss=2", "loss=0.01"},
      {"link 0,1 queue=3", "queue=50ms or queue=1mb"},
      {"link 0,1 speed=3", "rate=, delay="},
      {"link 0,9 rate=1mbit", "ranks are 0 to 3"},
      {"link 0,0-1 rate=1mbit", "rank 0 on both sides"},
      {"link 0 rate=1mbit", "is not a pair"},
      {"oneway rate=1mbit", "is not a pair"},
      {"node 3-1 rate=1mbit", "names no ranks"},
      {"cut one", "names no ranks"},
      {"cut 1 rate=1mbit", "takes no settings"}};
  Router router(4, 1, [](const Packet&) {});
  for (const auto& [statement, expected] : cases) {
    try {
      router.apply(statement);
      ADD_FAILURE() << "'" << statement << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_NE(error.message().find(expected), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace heddle::links
