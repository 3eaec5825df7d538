#include "recover/membership/membership.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "recover/membership/mutual.h"
#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

using State = Membership::State;
using std::chrono::seconds;

std::vector<int> members_of(const Roster& roster) {
  std::vector<int> numbers;
  for (const Member& m : roster.members) numbers.push_back(SimulatedNetwork::number_of(m));
  return numbers;
}

using Numbers = std::vector<int>;

TEST(Roster, TwoQuorumsAlwaysShareAMember) {
  for (std::size_t size = 1; size <= 6; ++size) {
    Roster roster;
    for (std::size_t i = 0; i < size; ++i) roster.members.push_back({.id = i + 1});
    const auto chosen = [&](unsigned bits) {
      std::vector<bool> there(size);
      for (std::size_t i = 0; i < size; ++i) there[i] = ((bits >> i) & 1U) != 0;
      return there;
    };
    EXPECT_TRUE(roster.is_quorum(chosen((1U << size) - 1)));
    for (unsigned a = 0; a < (1U << size); ++a) {
      EXPECT_FALSE(roster.is_quorum(chosen(a)) && roster.is_quorum(chosen(~a))) << size << " " << a;
      // One of the two halves can go on, so that a split never ends both.
      EXPECT_TRUE(roster.is_quorum(chosen(a)) || roster.is_quorum(chosen(~a))) << size << " " << a;
    }
  }
}

TEST(MutuallyHeard, OneBadLinkCostsOneMemberAndABadMemberOnlyItself) {
  const auto voter = [](std::size_t place, std::vector<bool> hears) {
    return Voter{.place = place, .hears = std::move(hears)};
  };
  using Places = std::vector<std::size_t>;
  EXPECT_EQ(mutually_heard({voter(0, {1, 1, 1}), voter(1, {1, 1, 0}), voter(2, {1, 1, 1})}),
            (Places{0, 1}));
  EXPECT_EQ(mutually_heard({voter(0, {1, 0, 0, 1}), voter(1, {1, 1, 1, 1}), voter(2, {0, 1, 1, 1}),
                            voter(3, {1, 1, 1, 1})}),
            (Places{1, 2, 3}));
  EXPECT_EQ(mutually_heard({voter(0, {1, 1}), voter(1, {1, 0})}), (Places{0}));  // 1 leaves
  EXPECT_EQ(mutually_heard({voter(2, {0, 0, 1})}), (Places{2}));
}

TEST(Limits, FollowFromOneTimeoutAndWhatWasMeasured) {
  const Limits near =
      derive_limits(seconds(60), {.round_trip = milliseconds(1), .step = milliseconds(400)});
  EXPECT_EQ(near.missed_call, milliseconds(1200));
  EXPECT_LT(near.silent_after + near.heartbeat, seconds(2));
  EXPECT_EQ(near.give_up, seconds(60));
  const Limits long_steps =
      derive_limits(seconds(60), {.round_trip = milliseconds(1), .step = seconds(5)});
  EXPECT_EQ(long_steps.silent_after, milliseconds(1800));
  const Limits far =
      derive_limits(seconds(2), {.round_trip = milliseconds(300), .step = seconds(20)});
  EXPECT_EQ(far.heartbeat, milliseconds(300));
  EXPECT_EQ(far.missed_call, seconds(60));
  EXPECT_GT(far.give_up, 2 * far.silent_after);  // a time-out that nothing could keep is raised
  EXPECT_EQ(text_of(near),
            "heartbeats every 0.10 s, silent after 1.20 s, a call missed after 1.20 s, a round of "
            "agreement 0.40 s, giving up after 60 s");
}

TEST(Limits, AreLongerForWhoIsLateItselfUpToThreeSteps) {
  const auto silent_after = [](Duration step, Duration late) {
    return derive_limits(seconds(60), {.step = step, .late = late}).silent_after;
  };
  EXPECT_EQ(silent_after(milliseconds(100), seconds(2)), milliseconds(1200));
  EXPECT_EQ(silent_after(seconds(1), seconds(2)), seconds(3));
  EXPECT_EQ(silent_after(seconds(5), milliseconds(500)), milliseconds(2800));
}

TEST(Lateness, IsTheLongestGapOfTheLastTenSeconds) {
  Lateness lateness;
  lateness.look(seconds(100));  // what was before is nobody's delay
  lateness.look(seconds(100) + milliseconds(90));
  EXPECT_EQ(lateness.longest(seconds(101)), Duration{});
  lateness.look(seconds(101));
  lateness.look(seconds(101) + milliseconds(300));
  EXPECT_EQ(lateness.longest(seconds(102)), milliseconds(910));
  EXPECT_EQ(lateness.longest(seconds(111) + milliseconds(200)), milliseconds(300));
  EXPECT_EQ(lateness.longest(seconds(112)), Duration{});
}

TEST(Membership, UndisturbedRunStaysInItsFirstEpoch) {
  SimulatedNetwork net(1, 4);
  net.weather = {.loss = 0.1, .repeats = 0.1, .longest = milliseconds(60)};
  net.run_for(seconds(20));
  EXPECT_EQ(net.rosters().size(), 1U);
  EXPECT_GT(net.member(0).step(), 100);
}

TEST(Membership, AKilledRankIsMissedAndTheOthersGoOnWhereTheyWere) {
  for (int killed = 0; killed < 4; ++killed) {
    SimulatedNetwork net(7, 4);
    net.run_for(seconds(2));
    const std::int64_t before = net.member(1).step();
    net.kill(killed);
    ASSERT_TRUE(net.settles(seconds(2))) << "coordinator or not, found by silence alone";
    EXPECT_EQ(net.newest().epoch, 1U);
    EXPECT_EQ(net.newest().members.size(), 3U);
    EXPECT_FALSE(net.newest().has(SimulatedNetwork::address(killed).id));
    EXPECT_GE(net.newest().step, before);
    EXPECT_LE(net.newest().step, before + 1);
    EXPECT_TRUE(net.faults().empty());
  }
}

TEST(Membership, AClosedConnectionIsMissedAtOnce) {
  SimulatedNetwork net(7, 4);
  net.run_for(seconds(1));
  net.kill(0);
  net.close_connections(0);
  ASSERT_TRUE(net.settles(milliseconds(100)));
  EXPECT_EQ(members_of(net.newest()), (Numbers{1, 2, 3}));
}

TEST(Membership, OfASplitNetworkOneHalfGoesOnAndTheOtherEnds) {
  const std::vector<std::pair<std::set<int>, Numbers>> splits = {
      {{0, 1}, {0, 1}}, {{0, 3}, {0, 3}}, {{3}, {0, 1, 2}}, {{0}, {1, 2, 3}}};
  for (const auto& [half, goes_on] : splits) {
    SimulatedNetwork net(3, 4);
    net.run_for(seconds(1));
    net.split(half);
    net.run_for(seconds(12));
    EXPECT_EQ(members_of(net.newest()), goes_on);
    EXPECT_EQ(net.newest().epoch, 1U);
    for (int i = 0; i < 4; ++i) {
      const bool stays = std::ranges::count(goes_on, i) > 0;
      EXPECT_EQ(net.member(i).state(), stays ? State::going : State::ended) << i;
      EXPECT_EQ(net.at(i).last_word.find("are needed to go on") != std::string::npos, !stays);
    }
    EXPECT_GT(net.member(goes_on[0]).step(), net.newest().step);
    EXPECT_TRUE(net.faults().empty());
  }
}

TEST(Membership, WithoutAQuorumAClearEnd) {
  SimulatedNetwork net(5, 4);
  net.run_for(seconds(1));
  for (const int killed : {0, 1, 2}) net.kill(killed);
  net.run_for(seconds(12));
  EXPECT_EQ(net.member(3).state(), State::ended);
  EXPECT_EQ(net.at(3).last_word,
            "1 of 4 members of epoch 0 answer after 8 s, 3, or 2 with the first of them are needed "
            "to go on: the others may have gone on, these may not");
}

TEST(Membership, LossesOneByOneLeaveTheFirstAlone) {
  SimulatedNetwork net(5, 4);
  for (const int killed : {3, 2, 1}) {
    net.run_for(seconds(1));
    net.kill(killed);
    ASSERT_TRUE(net.settles(seconds(3)));
  }
  EXPECT_EQ(members_of(net.newest()), (Numbers{0}));
  net.run_for(seconds(1));
  EXPECT_GT(net.member(0).step(), net.newest().step);
}

TEST(Membership, AFrozenRankThatWakesUpIsToldThatTheOthersWentOn) {
  SimulatedNetwork net(9, 3);
  net.run_for(seconds(1));
  net.freeze(0);
  net.run_for(seconds(2));
  EXPECT_EQ(members_of(net.newest()), (Numbers{1, 2}));
  const std::int64_t step = net.member(0).step();
  net.freeze(0, false);
  ASSERT_TRUE(net.settles(seconds(2)));
  EXPECT_EQ(net.member(0).state(), State::ended);
  EXPECT_NE(net.at(0).last_word.find("2 members go on without this rank in epoch 1"),
            std::string::npos);
  EXPECT_LE(net.member(0).step(), step + 1);
  EXPECT_TRUE(net.faults().empty());
}

TEST(Membership, OneBadLinkEndsOneOfItsTwoRanks) {
  SimulatedNetwork net(2, 4);
  net.run_for(seconds(1));
  net.cut(1, 3);  // one way is enough
  net.run_for(seconds(3));
  ASSERT_TRUE(net.is_settled());
  EXPECT_EQ(members_of(net.newest()), (Numbers{0, 1, 2}));
}

TEST(Membership, NewcomersAreLetInWhenAskedAndTakeTheirPlaceBehindTheOthers) {
  SimulatedNetwork net(4, 3);
  net.run_for(seconds(1));
  net.join();
  net.run_for(seconds(1));
  EXPECT_EQ(net.rosters().size(), 1U) << "nobody is interrupted";
  ASSERT_EQ(net.member(0).waiting(net.now()).size(), 1U);
  net.change(0);
  ASSERT_TRUE(net.settles(seconds(2)));
  EXPECT_EQ(members_of(net.newest()), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(net.member(3).step(), net.newest().step);
  net.run_for(seconds(1));
  EXPECT_GT(net.member(3).step(), net.newest().step);
}

TEST(Membership, ANewcomerThatIsAnsweredWaitsAsLongAsItTakes) {
  SimulatedNetwork net(4, 3);
  net.run_for(seconds(1));
  net.join();
  net.run_for(seconds(30));  // much longer than it would wait for an answer
  ASSERT_EQ(net.member(3).state(), State::joining) << net.at(3).last_word;
  net.change(0);
  ASSERT_TRUE(net.settles(seconds(2)));
  EXPECT_EQ(members_of(net.newest()), (Numbers{0, 1, 2, 3}));
}

TEST(Membership, NewcomersThatDieNeverHaveTheQuorum) {
  SimulatedNetwork net(4, 2);
  for (int i = 0; i < 5; ++i) net.join();
  net.run_for(seconds(1));
  net.change(0);
  net.run_for(milliseconds(300));
  ASSERT_EQ(net.newest().members.size(), 4U);  // not more than there were before
  for (int i = 2; i < net.size(); ++i) net.kill(i);
  ASSERT_TRUE(net.settles(seconds(3)));
  EXPECT_EQ(members_of(net.newest()), (Numbers{0, 1}));
}

TEST(Membership, WhoHasAnotherTokenIsNotLetInAndDisturbsNobody) {
  SimulatedNetwork net(4, 3);
  net.weather.uses_bytes = true;
  const int stranger = net.join(wrong_token());
  net.run_for(seconds(1));
  EXPECT_TRUE(net.member(0).waiting(net.now()).empty());
  net.change(0);
  net.run_for(seconds(9));
  EXPECT_EQ(members_of(net.newest()), (Numbers{0, 1, 2}));
  EXPECT_EQ(net.newest().epoch, 1U);
  EXPECT_GT(net.refused(), 100);
  EXPECT_EQ(net.member(stranger).state(), State::ended);
  EXPECT_EQ(net.at(stranger).last_word, "none of 3 members has answered for 8 s");
}

TEST(Membership, ARankThatLeavesTakesPartInTheDecision) {
  for (const int leaving : {0, 1}) {
    SimulatedNetwork net(6, 2);  // the second alone would be no quorum
    net.run_for(seconds(1));
    net.leave(leaving);
    ASSERT_TRUE(net.settles(seconds(2)));
    EXPECT_EQ(members_of(net.newest()), (Numbers{1 - leaving}));
    EXPECT_EQ(net.at(leaving).last_word, "left; 1 member goes on in epoch 1");
  }
}

TEST(Membership, WhereAllLeaveAllEnd) {
  SimulatedNetwork net(6, 3);
  net.run_for(seconds(1));
  for (int i = 0; i < 3; ++i) net.leave(i);
  ASSERT_TRUE(net.settles(seconds(4)));
  EXPECT_EQ(net.newest().epoch, 0U);
  EXPECT_EQ(net.at(0).last_word, "left, as all do who are there");
  EXPECT_EQ(net.at(2).last_word, "left without an answer of the others");
}

TEST(Membership, ANoteThatIsRepeatedLaterKeepsNobodyAlive) {
  const Roster two{.members = {{.id = 1}, {.id = 2}}};
  Membership first(5, 1, two, kLimits, seconds(0)), second(5, 2, two, kLimits, seconds(0));
  second.tick(milliseconds(1));
  const Note beat = second.take_letters().at(0).note;
  for (Membership::Time now = seconds(0); now < seconds(2); now += milliseconds(50)) {
    first.receive(beat, now);
    first.tick(now);
  }
  EXPECT_EQ(first.roster().epoch, 1U);
  EXPECT_EQ(first.roster().members.size(), 1U);
}

TEST(Membership, AStepThatEndsBehindThePromiseDoesNotCount) {
  const Roster two{.members = {{.id = 1}, {.id = 2}}};
  Membership first(5, 1, two, kLimits, seconds(0));
  EXPECT_TRUE(first.finished(1));
  first.suspect(2, milliseconds(10));
  EXPECT_EQ(first.state(), State::agreeing);
  EXPECT_FALSE(first.finished(2));
  first.tick(milliseconds(10));
  EXPECT_EQ(first.roster().epoch, 1U);
  EXPECT_EQ(first.roster().step, 1);
}

/// So that others do not give up for it whoever else is late just then.
TEST(Membership, AnAlarmSaysWhoIsNotHeard) {
  const Roster three{.members = {{.id = 1}, {.id = 2}, {.id = 3}}};
  Membership second(5, 2, three, kLimits, seconds(0));
  second.suspect(3, milliseconds(10));
  int alarms = 0;
  for (const Membership::Letter& letter : second.take_letters()) {
    if (letter.note.kind != Note::Kind::alarm) continue;
    EXPECT_EQ(letter.note.hears, (std::vector<bool>{true, true, false}));
    ++alarms;
    if (letter.to.id != 1) continue;
    Membership first(5, 1, three, kLimits, seconds(0));
    first.receive(letter.note, milliseconds(11));
    EXPECT_EQ(first.take_events().at(0).text,
              "epoch 0 has ended behind step 0: rank 1 does not hear rank 2 any more");
  }
  EXPECT_EQ(alarms, 2);
}

/// What `from` has to say reaches `to` and nobody else.
void deliver(Membership& from, Membership& to, Membership::Time now) {
  for (const Membership::Letter& letter : from.take_letters()) {
    if (letter.to.id == to.self().id) to.receive(letter.note, now);
  }
}

/// The first of three decides to go on with the second, and is cut off before anybody hears of it.
TEST(Membership, WhatMayHaveBeenDecidedIsDecidedAgain) {
  const Roster three{.members = {{.id = 1}, {.id = 2}, {.id = 3}}};
  const auto start = [&](MemberId id) { return Membership(5, id, three, kLimits, seconds(0)); };
  Membership first = start(1), second = start(2), third = start(3);
  Membership::Time now = milliseconds(10);
  first.suspect(3, now);
  first.tick(now);
  for (int i = 0; i < 2; ++i) {
    deliver(first, second, now);
    deliver(second, first, now);
  }
  ASSERT_EQ(first.roster().epoch, 1U);
  ASSERT_EQ(second.roster().epoch, 0U);
  for (; now < seconds(3); now += milliseconds(50)) {
    second.tick(now);
    third.tick(now);
    deliver(second, third, now);
    deliver(third, second, now);
  }
  EXPECT_EQ(second.roster(), first.roster());
  EXPECT_EQ(third.state(), State::ended);
}

/// A proposal that comes when a higher ballot was promised is refused.
TEST(Membership, OldProposalsAreRefused) {
  const Roster three{.members = {{.id = 1}, {.id = 2}, {.id = 3}}};
  Membership second(5, 2, three, kLimits, seconds(0));
  const auto note = [&](Note::Kind kind, MemberId from, Ballot ballot) {
    return Note{.kind = kind,
                .run = 5,
                .from = {.id = from},
                .sequence = 1,
                .ballot = ballot,
                .members = three.members};
  };
  const auto answer = [&](const Note& asked) {
    second.take_letters();
    second.receive(asked, milliseconds(1));
    return second.take_letters().back().note.kind;
  };
  EXPECT_EQ(answer(note(Note::Kind::prepare, 3, {2, 2})), Note::Kind::promise);
  EXPECT_EQ(answer(note(Note::Kind::prepare, 1, {1, 0})), Note::Kind::refusal);
  EXPECT_EQ(answer(note(Note::Kind::propose, 1, {1, 0})), Note::Kind::refusal);
  EXPECT_EQ(answer(note(Note::Kind::propose, 3, {2, 2})), Note::Kind::accepted);
}

/// What may happen to a run.
struct Fate {
  int least = 2, most = 6;  ///< processes
  double kill = 0, freeze = 0, split = 0, cut = 0, heal = 0.2, join = 0, leave = 0, suspect = 0;
  double worst_loss = 0.3;
  int latest = 125;  ///< milliseconds that a note may take
  bool uses_bytes = false;
};

/// Lets a run live through random faults, then leaves it in peace. Returns what it did wrong.
std::string live(std::uint64_t seed, const Fate& fate) {
  std::mt19937_64 first(seed);
  SimulatedNetwork net(
      seed, fate.least +
                static_cast<int>(first() % static_cast<std::uint64_t>(fate.most - fate.least + 1)));
  net.weather = {
      .loss = fate.worst_loss * static_cast<double>(net.dice(4)) / 3.0,
      .repeats = 0.1,
      .damage = fate.uses_bytes ? 0.05 : 0.0,
      .longest = milliseconds(5 + net.dice(3) * static_cast<std::uint64_t>(fate.latest) / 2),
      .uses_bytes = fate.uses_bytes};
  const auto anyone = [&] {
    return static_cast<int>(net.dice(static_cast<std::uint64_t>(net.size())));
  };
  const int episodes = 2 + static_cast<int>(net.dice(8));
  for (int i = 0; i < episodes; ++i) {
    // Often shorter than finding a fault and agreeing about it takes.
    net.run_for(milliseconds(25) * static_cast<int>(1 + net.dice(i % 2 == 0 ? 8 : 80)));
    if (net.chance(fate.kill)) {
      const int killed = anyone();
      net.kill(killed);
      if (net.chance(0.5)) net.close_connections(killed);
    }
    if (net.chance(fate.freeze)) net.freeze(anyone(), net.chance(0.6));
    if (net.chance(fate.split)) {
      std::set<int> half;
      for (int p = 0; p < net.size(); ++p) {
        if (net.chance(0.5)) half.insert(p);
      }
      net.split(half);
    }
    if (net.chance(fate.cut)) net.cut(anyone(), anyone());
    if (net.chance(fate.heal)) net.heal();
    if (net.chance(fate.suspect)) net.suspect(anyone(), anyone());
    if (net.chance(fate.leave)) net.leave(anyone());
    if (net.size() < 10 && net.chance(fate.join)) {
      net.join(fate.uses_bytes && net.chance(0.3) ? wrong_token() : right_token());
    }
    if (net.chance(fate.join)) net.change(anyone());
  }
  net.heal();
  for (int i = 0; i < net.size(); ++i) net.freeze(i, false);
  net.weather = {.uses_bytes = fate.uses_bytes};
  const auto peace = net.now();
  const bool settles = net.settles_with_newcomers(seconds(30));
  if (!net.faults().empty()) return net.faults().front();
  if (!settles) return "neither ends nor goes on";
  if (!net.has_quorum(peace + seconds(4))) return "";  // who was about to give up may
  for (const Member& m : net.newest().members) {
    if (net.is(SimulatedNetwork::number_of(m), State::going)) return "";
  }
  return "ends although there is a quorum";
}

void live_through(int schedules, const Fate& fate) {
  for (int i = 0; i < schedules; ++i) {
    const std::string fault = live(1000 + static_cast<std::uint64_t>(i), fate);
    ASSERT_EQ(fault, "") << "seed " << 1000 + i;
  }
}

TEST(MembershipSchedules, Kills) { live_through(700, {.kill = 0.5}); }
TEST(MembershipSchedules, SplitsAndBadLinks) {
  live_through(700, {.split = 0.5, .cut = 0.3, .heal = 0.4});
}
TEST(MembershipSchedules, FlappingLinks) {
  live_through(500, {.split = 0.9, .cut = 0.9, .heal = 0.7, .worst_loss = 0.6});
}
TEST(MembershipSchedules, FrozenRanks) { live_through(500, {.freeze = 0.7, .suspect = 0.1}); }
TEST(MembershipSchedules, NewcomersAndLeavers) {
  live_through(500, {.kill = 0.2, .join = 0.6, .leave = 0.2});
}
/// Ranks are taken for lost all the time, several propose at once, and what they said arrives when
/// others have decided.
TEST(MembershipSchedules, NotesThatAreLaterThanAttemptsLast) {
  live_through(800, {.least = 3,
                     .kill = 0.15,
                     .split = 0.4,
                     .cut = 0.5,
                     .heal = 0.5,
                     .suspect = 0.5,
                     .latest = 1500});
}
TEST(MembershipSchedules, EverythingAtOnce) {
  live_through(1000, {.kill = 0.3,
                      .freeze = 0.3,
                      .split = 0.3,
                      .cut = 0.3,
                      .heal = 0.3,
                      .join = 0.3,
                      .leave = 0.1,
                      .suspect = 0.1,
                      .worst_loss = 0.5});
}
TEST(MembershipSchedules, SealedDamagedAndFromStrangers) {
  live_through(80, {.most = 4, .kill = 0.3, .split = 0.2, .join = 0.4, .uses_bytes = true});
}

}  // namespace
}  // namespace heddle::recover
