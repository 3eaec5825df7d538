// Sites that lose ranks and go on (docs/design/055-elastic-sites.md).

#include <gtest/gtest.h>

#include "train/elastic_run.h"
#include "train/planned_losses.h"

namespace heddle {
namespace {

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Fragments begin at steps 3, 4, 6, 7, 9 and come a step later, as streams do; `kAtOnce`: all of
/// it travels in steps 3, 6 and 9.
const Settings kStreaming = {"parallel.sites=2",    "outer.every=3", "outer.fragments=2",
                             "outer.delay=1",       "outer.mix=0.5", "train.steps=10",
                             "recover.elastic=true"};
const Settings kAtOnce = {"parallel.sites=2",    "outer.every=3",    "outer.fragments=1",
                          "outer.delay=0",       "outer.codec=none", "train.steps=10",
                          "recover.elastic=true"};

TEST(ElasticSites, WithoutALossAreTheSitesOfAWorld) {
  const Settings settings = with(kStreaming, {"parallel.dp=2", "train.eval_every=2"});
  ElasticRun elastic(4, settings);
  const auto seen = elastic.train({}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 1);
  ElasticRun plain(4, with(settings, {"recover.elastic=false"}));
  plain.train_in_one_world();
  expect_same_state(elastic.last(), plain.last());
  EXPECT_EQ(elastic.files().numbers(), plain.files().numbers());
}

class ElasticSiteMesh : public ::testing::TestWithParam<MeshCase> {};

/// A replica in the site has what was lost, and any moment of an exchange may be the one.
TEST_P(ElasticSiteMesh, LosesARankAtAnyCallAndEndsWithTheSameWeights) {
  const Settings& settings = GetParam().settings;
  const bool has_stages_or_parts = std::ranges::count(settings, "parallel.pp=2") > 0 ||
                                   std::ranges::count(settings, "parallel.tp=2") > 0;
  const int ranks = has_stages_or_parts ? 8 : 4;
  expect_losses_without_a_trace(ranks, GetParam(), trials());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ElasticSiteMesh,
    ::testing::Values(MeshCase{"streaming", with(kStreaming, {"parallel.dp=2"})},
                      MeshCase{"at_once", with(kAtOnce, {"parallel.dp=2"})},
                      MeshCase{"sparse", with(kAtOnce, {"parallel.dp=2", "outer.codec=topk:8:256",
                                                        "outer.mix=0"})},
                      MeshCase{"evaluated", with(kStreaming, {"parallel.dp=2", "train.eval_every=1",
                                                              "checkpoint.every=1"})},
                      MeshCase{"dp2_pp2", with(kStreaming, {"parallel.dp=2", "parallel.pp=2"})},
                      MeshCase{"dp2_tp2", with(kStreaming, {"parallel.dp=2", "parallel.tp=2"})},
                      MeshCase{"muon", with(kStreaming, {"parallel.dp=2", "optim.name=\"muon\""})},
                      MeshCase{"experts",
                               with(kStreaming, {"parallel.dp=2", "model.router_bias_rate=0.01"}),
                               {{"model_type", "heddle_moe"},
                                {"moe_intermediate_size", 8},
                                {"n_routed_experts", 4},
                                {"num_experts_per_tok", 2},
                                {"first_k_dense_replace", 1},
                                {"topk_method", "noaux_tc"}}}),
    [](const auto& info) { return info.param.name; });

/// Each of the calls of a whole exchange, which comes to some ranks and not to others.
TEST(ElasticSites, SurviveALossAtEveryCallOfAnExchange) {
  const Settings settings = with(kAtOnce, {"parallel.dp=2", "train.steps=4", "checkpoint.every=9"});
  ElasticRun undisturbed(4, settings);
  const auto calls = undisturbed.train({}, true).calls;
  const std::int64_t victim = 3, all = calls[victim];
  // The third of four steps; behind the last there is an evaluation and a save.
  for (std::int64_t fatal = all * 2 / 5; fatal < all * 3 / 4; ++fatal) {
    ElasticRun run(4, settings);
    SCOPED_TRACE(fmt::format("call {} of {}", fatal, all));
    const auto seen = run.train({{victim, fatal}}, true, {}, static_cast<std::uint64_t>(fatal));
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// Members 0 and 3 are of different sites.
TEST(ElasticSites, SurviveTwoLossesInARow) {
  expect_two_losses_without_a_trace(with(kStreaming, {"parallel.dp=2"}), trials());
}

/// What a site has for itself, by the names that it has there.
std::map<std::string, std::string> own_tensors(const std::filesystem::path& checkpoint, int site) {
  std::map<std::string, std::string> own;
  const std::string prefix = fmt::format("optimizer/site{}.", site);
  for (const auto& [name, bytes] : tensors_of(checkpoint)) {
    if (!name.starts_with(prefix)) continue;
    std::string& values = own[name.substr(prefix.size())] = bytes;
    const std::string number = fmt::format("\"site{}.", site);
    for (std::size_t at = 0; (at = values.find(number, at)) != std::string::npos;) {
      values.replace(at, number.size(), "\"site.");
    }
  }
  return own;
}

/// Lost behind the last step, before that is saved: what is saved then is what it was given.
TEST(ElasticSites, ASiteThatIsLostGoesOnAsAnotherOneIs) {
  const Settings settings =
      with(kAtOnce, {"train.eval_tokens=600", "train.eval_every=0", "checkpoint.every=0"});
  ElasticRun undisturbed(2, settings);
  const auto calls = undisturbed.train({}, true).calls;
  EXPECT_NE(own_tensors(undisturbed.last(), 0), own_tensors(undisturbed.last(), 1));
  ElasticRun run(2, settings);
  const auto seen = run.train({{1, calls[1] - 12}}, true);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  ASSERT_EQ(seen.epochs, 2);
  run.expect_every_step_once();
  EXPECT_EQ(epochs_of(run)[1]["step"], run.steps());
  EXPECT_EQ(own_tensors(run.last(), 0), own_tensors(undisturbed.last(), 0));
  EXPECT_EQ(own_tensors(run.last(), 0), own_tensors(run.last(), 1));
  EXPECT_EQ(tensors_of(run.last()).at("model.safetensors"),
            tensors_of(undisturbed.last()).at("model.safetensors"));
  EXPECT_EQ(epochs_of(run)[1]["source"],
            "rank 1 is lost: site 1 with the weights and moments of site 0; not exact: what site 1 "
            "alone had is gone, going on behind step 10");
}

/// All of a site at any time, also in an exchange, and of the first site as of the second. Sites
/// compare their outer weights in every exchange and at the start of every epoch.
TEST(ElasticSites, AWholeSiteIsLostAndComesBack) {
  for (const Settings& of : {kStreaming, kAtOnce}) {
    for (std::int64_t step = 1; step < 9; ++step) {
      ElasticRun run(4, with(of, {"parallel.pp=2"}));
      const int site = static_cast<int>(step % 2);
      SCOPED_TRACE(fmt::format("site {} behind step {}", site, step));
      run.losses = {{step, {2 * site, 2 * site + 1}}};
      const auto seen = run.train({}, true, {}, static_cast<std::uint64_t>(step));
      EXPECT_EQ(seen.failures, std::vector<std::string>());
      EXPECT_EQ(seen.epochs, 2);
      run.expect_every_step_once();
      const std::string source = epochs_of(run)[1]["source"];
      EXPECT_NE(source.find(
                    fmt::format("site {} with the weights and moments of site {}", site, 1 - site)),
                std::string::npos)
          << source;
    }
  }
}

/// At any moment. No replica has what is lost: all of the site goes on as another one does, and
/// nobody goes back.
void lose_what_no_replica_has(int ranks, const Settings& settings) {
  ElasticRun undisturbed(ranks, settings);
  const auto calls = undisturbed.train({}, true).calls;
  std::mt19937_64 random(3);
  for (int trial = 0; trial < trials(); ++trial) {
    ElasticRun run(ranks, settings);
    const int victim = trial % ranks;
    const std::int64_t fatal = any_call(calls, victim, random);
    SCOPED_TRACE(fmt::format("member {} at call {}", victim, fatal));
    const auto seen = run.train({{victim, fatal}}, true, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    run.expect_every_step_once();
    for (const Json& epoch : epochs_of(run)) {
      const std::string source = epoch["source"].is_null() ? "" : epoch["source"];
      EXPECT_EQ(source.find("go back"), std::string::npos) << source;
    }
  }
}

TEST(ElasticSites, AStageThatIsLostIsTakenFromAnotherSite) {
  lose_what_no_replica_has(4, with(kStreaming, {"parallel.pp=2"}));
}

TEST(ElasticSites, ASiteOfOneRankIsTakenFromAnother) {
  lose_what_no_replica_has(2, kAtOnce);
  lose_what_no_replica_has(3, with(kStreaming, {"parallel.sites=3", "train.tokens_per_step=192"}));
}

/// Also where each replica has a part alone.
TEST(ElasticSites, AShardThatIsLostIsTakenFromAnotherSite) {
  for (const char* zero : {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3"}) {
    SCOPED_TRACE(zero);
    ElasticRun run(4, with(kStreaming, {"parallel.dp=2", zero}));
    run.losses = {{4, {2}}, {7, {1}}};
    const auto seen = run.train({}, true);
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    run.expect_every_step_once();
    const std::string line =
        "rank {} is lost: site {} with the weights and moments of site {}; not exact: what site "
        "{} alone had is gone, going on behind step {}";
    EXPECT_EQ(epochs_of(run)[1]["source"], fmt::format(fmt::runtime(line), 2, 1, 0, 1, 4));
    EXPECT_EQ(epochs_of(run)[2]["source"], fmt::format(fmt::runtime(line), 1, 0, 1, 0, 7));
  }
}

/// Three ranks are a replica for each of two sites, and a spare.
TEST(ElasticSites, GoOnWithFewerReplicasEachAndTheSameBatch) {
  const Settings settings = with(kStreaming, {"parallel.dp=2"});
  ElasticRun undisturbed(4, settings);
  undisturbed.train({}, false);
  ElasticRun run(4, settings);
  const auto seen = run.train({{1, 90}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(epochs_of(run)[1]["mesh"], "sites=2 dp=1 tp=1 pp=1");
  EXPECT_EQ(epochs_of(run)[1]["spares"], 1);
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
}

/// Of two sites of two stages one is whole without rank 1: the other one.
TEST(ElasticSites, AreFewerWhereRanksAreAndComeBackWithThem) {
  const Settings settings = with(kStreaming, {"parallel.pp=2", "train.steps=14"});
  ElasticRun run(4, settings);
  const PlannedRun seen = train_with_losses(run.config(), ElasticRun::options(), 4, {{5, {1}}},
                                            {.replace = false, .joins = {9}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  ASSERT_EQ(seen.epochs, 3);
  run.expect_every_step_once();
  const Json epochs = epochs_of(run);
  EXPECT_EQ(epochs[1]["mesh"], "dp=1 tp=1 pp=2");
  EXPECT_EQ(epochs[1]["spares"], 1);
  EXPECT_EQ(epochs[1]["source"],
            "rank 1 is lost: site 0 waits for ranks; not exact: what site 0 alone had is gone, "
            "going on behind step 5");
  EXPECT_EQ(epochs[2]["mesh"], "sites=2 dp=1 tp=1 pp=2");
  EXPECT_EQ(epochs[2]["source"],
            "ranks have come: site 0 with the weights and moments of site 1; not exact, going on "
            "behind step 10");
  // The batch keeps its size.
  std::int64_t tokens = 0;
  for (const Json& line : run.files().metrics()) {
    if (!line.contains("loss")) continue;
    EXPECT_EQ(line["tokens"].get<std::int64_t>(), tokens += 256);
  }
}

/// What a site cannot be given, or has for itself on each rank, is refused by name.
TEST(ElasticSites, RefuseWhatOneSiteAloneCanDo) {
  for (const auto& [setting, name] :
       {std::pair{"recover.copies=1", "recover.copies = 1"},
        {"recover.stages=\"checkfree\"", "recover.stages"},
        {"recover.recut=true", "recover.recut = true"},
        {"compress.gradients=\"int8\"", "compress.gradients with error feedback"},
        {"optim.name=\"onebit-adam\"", "optim.name = \"onebit-adam\""}}) {
    ElasticRun run(4, with(kStreaming, {"parallel.dp=2", setting}));
    const auto seen = run.train({}, false);
    ASSERT_EQ(seen.failures.size(), 4u) << setting;
    EXPECT_NE(seen.failures.front().find(fmt::format("parallel.sites = 2 and {}", name)),
              std::string::npos)
        << seen.failures.front();
  }
}

}  // namespace
}  // namespace heddle
