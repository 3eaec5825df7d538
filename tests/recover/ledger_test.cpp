#include "recover/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "data/test_files.h"
#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

MeshShape mesh_of(int dp, int pp = 1, int tp = 1) {
  return MeshShape().with(Axis::dp, dp).with(Axis::pp, pp).with(Axis::tp, tp);
}

/// The samples that one rank reads for a step, in its order.
std::vector<std::int64_t> samples_of(const Share& share, std::int64_t step) {
  std::vector<std::int64_t> samples;
  for (std::int64_t m = 0; m < share.plan.batches_per_step; ++m) {
    const std::int64_t first = share.plan.first_sample(step - 1, m);
    for (std::int64_t row = 0; row < share.plan.rows_per_batch; ++row)
      samples.push_back(first + row);
  }
  return samples;
}

/// Those of all replicas of a mesh, each replica once; all its ranks must read the same.
std::vector<std::int64_t> samples_of_step(const Ledger& ledger, const MeshShape& mesh,
                                          std::int64_t step) {
  std::vector<std::int64_t> all;
  std::vector<std::vector<std::int64_t>> by_replica(static_cast<std::size_t>(mesh.size(Axis::dp)));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    auto& own = by_replica[static_cast<std::size_t>(mesh.coord(Axis::dp, rank))];
    const auto read = samples_of(ledger.share(rank), step);
    if (own.empty()) own = read;
    EXPECT_EQ(own, read);
  }
  for (const auto& own : by_replica) all.insert(all.end(), own.begin(), own.end());
  return all;
}

TEST(Ledger, SharesAreThoseOfTodaysRunsWhereReplicasDivideTheBatch) {
  Ledger ledger(16, 2);
  ledger.begin_epoch(0, 0, mesh_of(4, 2, 2));
  for (int rank = 0; rank < 16; ++rank) {
    const Share share = ledger.share(rank);
    EXPECT_EQ(share.plan.first_in_step, mesh_of(4, 2, 2).coord(Axis::dp, rank) * 2 * 2);
    EXPECT_EQ(share.plan.batches_per_step, 2);
    EXPECT_EQ(share.blanks, 0);
  }
}

/// Those of the first site come first, as where sites go apart.
TEST(Ledger, ReplicasOfAllSitesDivideTheBatch) {
  Ledger ledger(16, 2);
  const MeshShape two = mesh_of(2, 2).with(Axis::site, 2);
  ledger.begin_epoch(0, 0, two);
  for (int rank = 0; rank < two.ranks(); ++rank) {
    const std::int64_t replica = two.coord(Axis::site, rank) * 2 + two.coord(Axis::dp, rank);
    EXPECT_EQ(ledger.share(rank).plan.first_in_step, replica * 4);
    EXPECT_EQ(ledger.share(rank).plan.batches_per_step, 2);
  }
  ledger.finished(1);
  // A single one has all of a step.
  ledger.begin_epoch(1, 1, mesh_of(1, 2));
  EXPECT_EQ(ledger.share(0).plan.first_in_step, 0);
  EXPECT_EQ(ledger.share(0).plan.batches_per_step, 8);
}

TEST(Ledger, FewerReplicasAccumulateMoreAndAllTheSameNumber) {
  Ledger ledger(16, 2);
  for (int dp = 1; dp <= 8; ++dp) {
    ledger.begin_epoch(static_cast<std::uint64_t>(dp), 0, mesh_of(dp));
    std::int64_t read = 0;
    for (int rank = 0; rank < dp; ++rank) {
      EXPECT_EQ(ledger.share(rank).accumulation(), (8 + dp - 1) / dp);
      EXPECT_LE(ledger.share(rank).blanks, 1);
      read += ledger.share(rank).plan.batches_per_step;
    }
    EXPECT_EQ(read, 8);
  }
}

TEST(Ledger, RefusesWhatWouldLoseSamplesOrUseThemTwice) {
  Ledger ledger(8, 2);
  EXPECT_THROW(ledger.share(0), Error);
  ledger.begin_epoch(3, 10, mesh_of(2));  // a newcomer
  ledger.finished(11);
  EXPECT_THROW(ledger.finished(11), Error);
  EXPECT_THROW(ledger.finished(13), Error);
  EXPECT_THROW(ledger.begin_epoch(4, 10, mesh_of(2)), Error);
  EXPECT_THROW(ledger.begin_epoch(4, 13, mesh_of(2)), Error);
  EXPECT_THROW(ledger.begin_epoch(3, 11, mesh_of(2)), Error);
  ledger.begin_epoch(4, 12, mesh_of(1));  // another member had finished step 12
  EXPECT_EQ(ledger.text(), "steps 11 to 12 by 2 replicas");
  ledger.finished(13);
  EXPECT_EQ(ledger.text(), "steps 11 to 12 by 2 replicas, 13 to 13 by 1");
  EXPECT_THROW(ledger.use_of(8 * 13), Error);
  EXPECT_THROW(ledger.use_of(8 * 10 - 1), Error);
  EXPECT_EQ(ledger.use_of(8 * 12).epoch, 4U);
  ledger.go_back(11);
  EXPECT_THROW(ledger.finished(12), Error) << "in which epoch?";
  EXPECT_THROW(ledger.share(0), Error);
  ledger.begin_epoch(5, 11, mesh_of(3));
  ledger.finished(12);
  EXPECT_EQ(ledger.text(), "steps 11 to 11 by 2 replicas, 12 to 12 by 3");
  try {
    ledger.begin_epoch(6, 12, mesh_of(5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "5 data-parallel replicas for a step of 4 micro-batches: some would have nothing to "
              "do");
  }
  ledger.go_back(4);  // before its time
  ledger.begin_epoch(7, 4, mesh_of(1));
  ledger.finished(5);
  EXPECT_EQ(ledger.text(), "steps 5 to 5 by 1 replica");
  EXPECT_THROW(Ledger(7, 2), Error);
}

/// What a mesh reads for a step, row by row.
std::vector<std::int32_t> tokens_of_step(const Dataset& dataset, const Ledger& ledger, int replicas,
                                         std::int64_t step) {
  Memory memory;
  std::vector<std::int32_t> tokens;
  for (int rank = 0; rank < replicas; ++rank) {
    Loader loader(dataset, ledger.share(rank).plan, memory, step - 1);
    for (std::int64_t m = 0; m < ledger.share(rank).plan.batches_per_step; ++m) {
      const Batch batch = loader.next();
      const auto ids = batch.ids_BS.host<std::int32_t>();
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
  return tokens;
}

TEST(Ledger, LoadersReadTheSameStepHoweverManyReplicasDivideIt) {
  const TemporaryFolder folder;
  const Dataset dataset(
      {.sources = {{write_counting_file(folder / "a.tok", {600}), 1.0}}, .seq_len = 8, .seed = 1});
  Ledger alone(14, 2);
  alone.begin_epoch(0, 4, mesh_of(1));
  const auto expected = tokens_of_step(dataset, alone, 1, 5);
  ASSERT_EQ(expected.size(), 14U * 8U);
  for (int replicas = 2; replicas <= 7; ++replicas) {
    Ledger ledger(14, 2);
    ledger.begin_epoch(0, 4, mesh_of(replicas));
    EXPECT_EQ(tokens_of_step(dataset, ledger, replicas, 5), expected) << replicas;
  }
}

/// 100 kills and 20 joins at random moments, on meshes as large as the ranks that are there allow.
TEST(Ledger, OverKillsAndJoinsEverySampleIsUsedOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 3);
    const std::int64_t per_step = rows * (24 + static_cast<std::int64_t>(random() % 20));
    const int pp = 1 + static_cast<int>(random() % 4);
    int ranks = 82 + pp, kills = 0, joins = 0;
    std::uint64_t epoch = 0;
    Ledger ledger(per_step, rows);
    MeshShape mesh;
    const auto begin = [&](std::int64_t steps) {
      const int replicas =
          static_cast<int>(std::min<std::int64_t>(std::max(1, ranks / pp), per_step / rows));
      mesh = mesh_of(replicas, pp);
      ledger.begin_epoch(++epoch, steps, mesh);
    };
    begin(0);
    std::vector<Ledger::Use> uses;  // by sample
    const auto use = [&] {          // the next step
      const auto step = ledger.steps() + 1;
      const auto samples = samples_of_step(ledger, mesh, step);
      ASSERT_EQ(static_cast<std::int64_t>(samples.size()), per_step);
      std::vector<std::int64_t> expected(samples.size());
      std::iota(expected.begin(), expected.end(), (step - 1) * per_step);
      ASSERT_EQ(samples, expected);  // all of them, once, in the order of one process
      for (int replica = 0; replica < mesh.size(Axis::dp); ++replica) {
        const Share share = ledger.share(replica);  // pp is slower than dp
        const auto own = samples_of(share, step);
        for (std::size_t i = 0; i < own.size(); ++i) {
          uses.push_back({step, epoch, replica, static_cast<std::int64_t>(i) / rows});
        }
      }
    };
    while (kills < 100 || joins < 20) {
      for (auto steps = random() % 3; steps > 0; --steps) {
        use();
        ledger.finished(ledger.steps() + 1);
      }
      const bool is_kill = kills < 100 && (joins == 20 || random() % 6 != 0);
      is_kill ? (++kills, --ranks) : (++joins, ++ranks);
      // Behind the totals of a step somebody has finished it, before them nobody has.
      const bool counts = random() % 2 == 0;
      if (counts) use();
      begin(ledger.steps() + (counts ? 1 : 0));
    }
    ASSERT_EQ(static_cast<std::int64_t>(uses.size()), ledger.steps() * per_step);
    for (std::size_t sample = 0; sample < uses.size(); ++sample) {
      const Ledger::Use told = ledger.use_of(static_cast<std::int64_t>(sample));
      ASSERT_EQ(told.step, uses[sample].step);
      ASSERT_EQ(told.epoch, uses[sample].epoch);
      ASSERT_EQ(told.replica, uses[sample].replica);
      ASSERT_EQ(told.micro_batch, uses[sample].micro_batch);
    }
  }
}

/// The same with processes that agree on who is there: everybody keeps a ledger of its own, and
/// what they say is the same.
TEST(Ledger, ProcessesThatAgreeOnTheirMembersAgreeOnWhoUsedWhat) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimulatedNetwork net(seed, 5);
    net.weather = {.loss = 0.1, .longest = milliseconds(40)};
    std::map<int, Ledger> ledgers;
    std::map<int, std::int64_t> known_from;
    const auto begin = [&](int number) {
      const Roster& roster = net.member(number).roster();
      known_from.try_emplace(number, roster.step);
      ledgers.try_emplace(number, 24, 2)
          .first->second.begin_epoch(roster.epoch, roster.step,
                                     mesh_of(static_cast<int>(roster.members.size())));
    };
    for (int i = 0; i < 5; ++i) begin(i);
    net.on_roster = begin;
    net.on_finished = [&](int number, std::int64_t step) { ledgers.at(number).finished(step); };
    for (int fault = 0; fault < 8; ++fault) {
      net.run_for(milliseconds(25 * (1 + net.dice(60))));
      const int struck = static_cast<int>(net.dice(static_cast<std::uint64_t>(net.size())));
      if (net.chance(0.5)) net.kill(struck);
      if (net.size() < 11) net.join();
      net.change(0);
    }
    ASSERT_TRUE(net.settles_with_newcomers(std::chrono::seconds(30)));
    ASSERT_TRUE(net.faults().empty());
    for (const auto& [number, ledger] : ledgers) {
      if (!net.is(number, Membership::State::going)) continue;
      for (std::int64_t step = known_from.at(number) + 1; step <= ledger.steps(); ++step) {
        // The epoch that finished it: the last of those that began before it.
        const Roster* by = nullptr;
        for (const auto& [epoch, roster] : net.rosters()) {
          if (roster.step < step) by = &roster;
        }
        std::vector<int> micro_batches(by->members.size());
        for (std::int64_t sample = 24 * (step - 1); sample < 24 * step; ++sample) {
          const Ledger::Use use = ledger.use_of(sample);
          ASSERT_EQ(use.epoch, by->epoch);
          ++micro_batches.at(static_cast<std::size_t>(use.replica));
        }
        const auto [least, most] = std::ranges::minmax(micro_batches);
        ASSERT_LE(most - least, 2) << "rows of one micro-batch";
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace heddle::recover
