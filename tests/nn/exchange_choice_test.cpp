#include "nn/experts/exchange_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"

namespace heddle {
namespace {

TEST(ExchangeRequest, ReadsPlans) {
  EXPECT_EQ(ExchangeRequest("").plan(4), (ExchangePlan{.r = 4}));
  EXPECT_TRUE(ExchangeRequest("").is_usual());
  EXPECT_EQ(ExchangeRequest("r=0").plan(4), (ExchangePlan{.r = 0}));
  const ExchangeRequest all("r=2 degree=4/2 2dh=8");
  EXPECT_EQ(all.plan(4),
            (ExchangePlan{.r = 2, .degree_forward = 4, .degree_backward = 2, .node = 8}));
  EXPECT_EQ(all.plan(4).text(), "r=2 degree=4/2 2dh=8");
  EXPECT_EQ(ExchangeRequest("degree=3").plan(4).text(), "r=4 degree=3");
  EXPECT_EQ(ExchangeRequest("rows=again").plan(1), (ExchangePlan{.sends_again = true}));
  EXPECT_TRUE(ExchangeRequest("adaptive 2dh=4").learns());
  EXPECT_FALSE(all.learns() || all.takes_turns() || all.is_usual());
}

TEST(ExchangeRequest, IsWrittenAsItIsRead) {
  for (const char* text :
       {"", "r=0", "r=510 degree=32/31 2dh=255 rows=again", "degree=2", "adaptive",
        "turns r=1 2dh=2", "adaptive degree=2/4", "degree=planned",
        "r=1 degree=planned 2dh=2 networks=1", "windows=planned", "degree=planned windows=planned",
        "degree=2/4 networks=1 windows=planned"}) {
    EXPECT_EQ(ExchangeRequest(text).text(), text);
  }
  EXPECT_EQ(ExchangeRequest(" 2dh=2   r=1 ").text(), "r=1 2dh=2");
  const ExchangePlan plan{.r = 2, .degree_forward = 8, .degree_backward = 4, .node = 16};
  EXPECT_EQ(ExchangeRequest(plan, 4).plan(4), plan);
  EXPECT_EQ(ExchangeRequest(plan, 2).text(), "degree=8/4 2dh=16");
}

TEST(ExchangeRequest, SaysWhatIsWrong) {
  const auto problem = [](const char* text) {
    const std::string unread = ExchangeRequest::problem_in(text);
    return unread.empty() ? ExchangeRequest(text).problem_on(6, 4) : unread;
  };
  EXPECT_EQ(problem("r=2 degree=2 2dh=3"), "");
  EXPECT_EQ(problem("r=3"), "r=3 is neither 0 nor a divisor of parallel.etp = 4; use 0, 1, 2, 4");
  EXPECT_EQ(problem("r=511"), "r=511; use 0 or a divisor of parallel.etp up to 510");
  EXPECT_EQ(problem("degree=0"),
            "degree=0; use 1 to 32 pieces, degree=N/M for forward and backward, or "
            "degree=planned");
  EXPECT_EQ(problem("degree=2/x"),
            "degree=2/x; use 1 to 32 pieces, degree=N/M for forward and backward, or "
            "degree=planned");
  EXPECT_EQ(problem("degree=planned/2").find("degree=planned/2; use"), 0u);
  for (const char* several :
       {"adaptive degree=planned", "degree=planned turns", "turns adaptive"}) {
    EXPECT_EQ(problem(several), "adaptive, turns and degree=planned each choose degrees; use one");
  }
  EXPECT_EQ(problem("2dh=4"), "2dh=4 does not divide parallel.ep = 6; use 1, 2, 3, 6");
  EXPECT_EQ(problem("2dh=0"), "2dh=0; use a divisor of parallel.ep up to 255");
  EXPECT_EQ(problem("fast"),
            "\"fast\" is none of r=N, degree=N, degree=N/M, degree=planned, 2dh=N, networks=N, "
            "windows=planned, rows=again, adaptive and turns");
  EXPECT_EQ(problem("rows=kept"), "rows=kept; use rows=again");
  EXPECT_EQ(problem("r=0 rows=again").find("rows=again is for rows that travel"), 0u);
  EXPECT_EQ(problem("windows=2"), "windows=2; use windows=planned");
  EXPECT_EQ(problem("windows=planned adaptive"),
            "windows=planned is for degrees that stay; name them, or use degree=planned");
  EXPECT_EQ(problem("r=0 windows=planned").find("windows=planned is for time between"), 0u);
  EXPECT_EQ(problem("networks=3"),
            "networks=3; use 2 where ep and etp exchange at the same time, 1 in turn");
  EXPECT_THROW(ExchangeRequest("fast"), Error);
}

TEST(ExchangeRequest, LeavesDegreesUntilTheyAreNamed) {
  const ExchangeRequest open("r=1 degree=planned 2dh=2 networks=1");
  EXPECT_TRUE(open.leaves_degrees());
  EXPECT_FALSE(open.is_usual() || open.learns() || open.takes_turns());
  const ExchangeRequest named = open.with_degrees(4, 8);
  EXPECT_FALSE(named.leaves_degrees());
  EXPECT_EQ(named.text(), "r=1 degree=4/8 2dh=2 networks=1");
}

TEST(ExchangeRequest, RefusesAWordThatIsGivenTwice) {
  for (const auto& [text, key] : {std::pair("degree=planned degree=2", "degree"),
                                  {"degree=2 degree=planned", "degree"},
                                  {"r=1 degree=2 r=1", "r"},
                                  {"2dh=2 2dh=4", "2dh"},
                                  {"networks=1 networks=2", "networks"},
                                  {"windows=planned windows=planned", "windows"},
                                  {"rows=again rows=again", "rows"},
                                  {"adaptive adaptive", "adaptive"}}) {
    EXPECT_EQ(ExchangeRequest::problem_in(text),
              std::string(key) + " is given twice; leave out one of them");
  }
}

TEST(ExchangeRequest, KeepsItsWindowsWhenDegreesAreNamed) {
  const ExchangeRequest open("degree=planned windows=planned");
  EXPECT_TRUE(open.plans_windows() && open.is_to_be_planned());
  EXPECT_EQ(open.with_degrees(4, 8).text(), "degree=4/8 windows=planned");
  EXPECT_TRUE(ExchangeRequest("degree=2 windows=planned").is_to_be_planned());
  EXPECT_FALSE(ExchangeRequest("degree=2").is_to_be_planned());
}

TEST(ExchangeChoice, TakesTurns) {
  ExchangeChoice choice("turns 2dh=2", 2, 4);
  std::vector<std::string> all;
  for (int call = 0; call < 17; ++call) all.push_back(choice.next(5).text());
  EXPECT_EQ(choice.next(5).text(), all.front());
  EXPECT_EQ(all.front(), "r=0");
  const std::set<std::string> distinct(all.begin(), all.end());
  EXPECT_EQ(distinct.size(), all.size());
  for (const char* one : {"r=1", "r=2 2dh=2", "r=1 degree=2/3 2dh=2 rows=again",
                          "r=2 degree=3/1 rows=again", "r=2 degree=4"}) {
    EXPECT_TRUE(distinct.contains(one)) << one;
  }
}

/// A time that is least for one plan, and falls towards it.
std::int32_t time_of(const ExchangePlan& plan, const ExchangePlan& best) {
  const auto octave = [](int n) { return n == 0 ? -3.0 : std::log2(n); };
  const double away = std::abs(octave(plan.r) - octave(best.r)) +
                      std::abs(octave(plan.degree_forward) - octave(best.degree_forward)) +
                      (plan.node == best.node ? 0.0 : 1.0);
  return static_cast<std::int32_t>(1000.0 * (1.0 + away));
}

TEST(ExchangeChoice, LearnsTheFastestPlanOfEveryCapacity) {
  constexpr int kEtp = 16;
  ExchangeChoice choice("adaptive 2dh=2", kEtp, 4);
  const ExchangePlan best[] = {{0, 1, 1, 1}, {1, 2, 2, 1}, {4, 8, 8, 2}, {16, 4, 4, 2}};
  std::vector<std::size_t> tried(std::size(best), 0);
  for (std::size_t call = 0; call < 4 * choice.most_trials(); ++call) {
    const std::size_t which = call % std::size(best);
    const ExchangePlan plan = choice.next(static_cast<std::int64_t>(which) * 128 + 5);
    choice.learn(time_of(plan, best[which]));
    tried[which] += choice.dictionary().contains(static_cast<std::int64_t>(which)) ? 0 : 1;
  }
  for (std::size_t which = 0; which < std::size(best); ++which) {
    const auto capacity = static_cast<std::int64_t>(which);
    ASSERT_TRUE(choice.dictionary().contains(capacity)) << which;
    EXPECT_EQ(choice.dictionary()[capacity], best[which]) << choice.dictionary()[capacity].text();
    EXPECT_EQ(choice.next(capacity * 128 + 127), best[which]);
    EXPECT_LE(tried[which], choice.most_trials());
  }
}

/// What a rank itself has measured does not count, only what all were told.
TEST(ExchangeChoice, DependsOnWhatAllRanksKnow) {
  const ExchangeRequest request("adaptive");
  ExchangeChoice slow(request, 4), fast(request, 4);
  for (std::int32_t call = 0; call < 100; ++call) {
    ASSERT_EQ(slow.next(7), fast.next(7));
    slow.took(1.0 + call);
    fast.took(1e-9);
    EXPECT_GT(slow.microseconds(), fast.microseconds());
    EXPECT_GE(fast.microseconds(), 1);
    for (ExchangeChoice* choice : {&slow, &fast}) choice->learn((call * 37) % 101);
  }
}

}  // namespace
}  // namespace heddle
