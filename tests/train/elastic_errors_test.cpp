// Runs that outlive their ranks and keep what encodings have lost: residuals of gradients, errors
// of 1-bit Adam.

#include <gtest/gtest.h>

#include "checkpoint/manifest.h"
#include "train/elastic_run.h"
#include "train/planned_losses.h"

namespace heddle {
namespace {

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings coded(const Settings& more, const char* codec = "int4") {
  return with({"recover.elastic=true", "compress.min_bytes=0",
               fmt::format("compress.gradients=\"{}\"", codec)},
              more);
}

/// Frozen behind step 3 of 6.
Settings onebit(const Settings& more) {
  return with({"recover.elastic=true", "optim.name=\"onebit-adam\"", "optim.freeze_step=3"}, more);
}

/// The second moment settles by itself, within the run.
Settings settling(const Settings& more) {
  return with({"recover.elastic=true", "optim.name=\"onebit-adam\"", "optim.beta2=0.5",
               "optim.freeze_ratio=0.02", "train.steps=8"},
              more);
}

class ElasticErrors : public ::testing::TestWithParam<MeshCase> {};

/// Nobody is lost: the step that was interrupted is taken again, with what encodings had lost
/// before it. In every other trial that is interrupted too.
TEST_P(ElasticErrors, AreThoseOfTheLastDecidedStepAfterAFalseAlarmAtAnyCall) {
  ElasticRun undisturbed(4, GetParam().settings);
  const auto calls = undisturbed.train({}, false).calls;
  std::mt19937_64 random(13);
  for (int trial = 0; trial < trials(6); ++trial) {
    ElasticRun run(4, GetParam().settings);
    const int member = trial % 4, other = (trial + 1) % 4;
    std::vector<ElasticRun::Fault> alarms = {{member, any_call(calls, member, random), true}};
    if (trial % 2 == 1) {
      const auto soon = alarms.front().fatal + static_cast<std::int64_t>(random() % 40);
      alarms.push_back({other, soon, true});
    }
    SCOPED_TRACE(fmt::format("member {} at call {} of {}, then {} at {}", member,
                             alarms.front().fatal, calls[static_cast<std::size_t>(member)], other,
                             alarms.back().fatal));
    const auto seen = run.train(alarms, false, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// What a lost rank had not sent yet is gone. That is little of a gradient, so losses stay near.
TEST_P(ElasticErrors, OfALostRankAreGoneAndTheRunGoesOn) {
  ElasticRun undisturbed(4, GetParam().settings);
  const auto calls = undisturbed.train({}, true).calls;
  std::mt19937_64 random(17);
  for (int trial = 0; trial < trials(6); ++trial) {
    ElasticRun run(4, GetParam().settings);
    const int victim = trial % 4;
    const std::int64_t fatal = any_call(calls, victim, random);
    const bool replaces = trial % 2 == 0;
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", victim, fatal,
                             calls[static_cast<std::size_t>(victim)]));
    const auto seen = run.train({{victim, fatal}}, replaces, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    run.expect_every_step_once();
    expect_near_losses(run, undisturbed, 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ElasticErrors,
    ::testing::Values(
        MeshCase{"dp4", coded({"parallel.dp=4"})},
        MeshCase{"dp4_topk", coded({"parallel.dp=4"}, "topk")},
        MeshCase{"dp2_pp2", coded({"parallel.dp=2", "parallel.pp=2"})},
        MeshCase{"dp2_tp2", coded({"parallel.dp=2", "parallel.tp=2"})},
        MeshCase{"dp4_zero1_copies",
                 coded({"parallel.dp=4", "parallel.zero=1", "recover.copies=1"})},
        MeshCase{"dp2_pp2_zero2_copies",
                 coded({"parallel.dp=2", "parallel.pp=2", "parallel.zero=2", "recover.copies=1"})},
        MeshCase{"dp4_zero3_copies",
                 coded({"parallel.dp=4", "parallel.zero=3", "recover.copies=1"})},
        MeshCase{"onebit_dp4", onebit({"parallel.dp=4"})},
        MeshCase{"onebit_dp2_pp2", onebit({"parallel.dp=2", "parallel.pp=2"})},
        MeshCase{"onebit_settles_dp2_tp2", settling({"parallel.dp=2", "parallel.tp=2"})}),
    [](const auto& info) { return info.param.name; });

/// With ZeRO 1 nobody has the shard of a lost rank but the checkpoint; nobody is lost here.
TEST(OnebitAdamOfElasticRuns, GathersTheMomentumAnewAfterAFalseAlarm) {
  const Settings settings = onebit({"parallel.dp=4", "parallel.zero=1"});
  ElasticRun undisturbed(4, settings);
  const auto calls = undisturbed.train({}, false).calls;
  for (const int part : {5, 6, 7}) {
    ElasticRun run(4, settings);
    const auto seen = run.train({{2, calls[2] * part / 8, true}}, false);
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_EQ(seen.epochs, 2);
    expect_same_state(run.last(), undisturbed.last());
  }
}

/// Until it has made a frozen step, 1-bit Adam has lost nothing that a replica does not have.
TEST(OnebitAdamOfElasticRuns, IsExactWhereARankIsLostInTheWarmUp) {
  ElasticRun undisturbed(4, onebit({"parallel.dp=4"})), run(4, onebit({"parallel.dp=4"}));
  undisturbed.train({}, true);
  const PlannedRun seen = train_with_losses(run.config(), ElasticRun::options(), 4, {{3, {1}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  expect_same_state(run.last(), undisturbed.last());
  const std::string source = epochs_of(run)[1]["source"];
  EXPECT_NE(source.find("stage 0 from its replica on rank 0; exact"), std::string::npos) << source;
}

/// Sets floats of a kind of state to zero in the files of a checkpoint, of every tensor the
/// elements [begin, end) of `of` equal parts, rounded up.
void forget(const std::filesystem::path& checkpoint, const std::string& kind, std::size_t begin,
            std::size_t end, std::size_t of) {
  int tensors = 0;
  Manifest manifest =
      parse_manifest(read_text_file(checkpoint / kManifestFile), checkpoint.string());
  for (FileRecord& record : manifest.files) {
    if (!record.path.ends_with(".safetensors")) continue;
    std::string bytes = read_text_file(checkpoint / record.path);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const Json entries = parse_json(bytes.substr(sizeof(header), header), record.path);
    for (const auto& [tensor, entry] : entries.items()) {
      if (!tensor.starts_with(kind + ".")) continue;
      const std::size_t first = entry["data_offsets"][0], last = entry["data_offsets"][1];
      const std::size_t count = (last - first) / 4, each = (count + of - 1) / of;
      const std::size_t from = std::min(count, begin * each), to = std::min(count, end * each);
      bytes.replace(sizeof(header) + header + first + from * 4, (to - from) * 4, (to - from) * 4,
                    '\0');
      ++tensors;
    }
    record.parts.clear();
    record.checksum = checksum_of(std::as_bytes(std::span(bytes)));
    write_file_atomically(real_file_system(), checkpoint / record.path, bytes);
  }
  const std::string text = manifest_text(manifest);
  write_file_atomically(real_file_system(), checkpoint / kManifestFile, text);
  write_file_atomically(real_file_system(), checkpoint / kCommitFile, commit_text(text));
  ASSERT_GT(tensors, 0) << kind;
}

/// The run that stops behind step `kLost`, forgets what only rank 1 had, and goes on.
class Forgetting {
 public:
  static constexpr std::int64_t kLost = 4;

  explicit Forgetting(const Settings& settings)
      : settings_(with(settings, {"checkpoint.every=4"})) {
    ElasticRun undisturbed(4, settings_);
    undisturbed.train({}, false);
    checkpoint_ = undisturbed.files().checkpoint(kLost);
    run_.emplace(4, settings_);
    std::filesystem::create_directories(run_->files().checkpoints());
    std::filesystem::copy(checkpoint_, run_->files().checkpoint(kLost),
                          std::filesystem::copy_options::recursive);
  }
  void forget(const std::string& kind, std::size_t begin = 0, std::size_t end = 1,
              std::size_t of = 1) const {
    heddle::forget(run_->files().checkpoint(kLost), kind, begin, end, of);
  }
  std::filesystem::path go_on() {
    run_->train_in_one_world();
    return run_->last();
  }
  /// One that loses rank 1 behind that step, and is given another.
  void expect_same_with_a_loss() {
    ElasticRun run(4, settings_);
    const PlannedRun seen =
        train_with_losses(run.config(), ElasticRun::options(), 4, {{kLost, {1}}});
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_EQ(seen.epochs, 2);
    expect_same_state(run.last(), go_on());
    line = epochs_of(run)[1]["source"];
  }
  std::string line;

 private:
  Settings settings_;
  std::filesystem::path checkpoint_;
  std::optional<ElasticRun> run_;
};

TEST(ElasticErrorsOfALostRank, AreZerosAndThoseOfOthersAreKeptToTheBit) {
  Forgetting residuals(coded({"parallel.dp=4", "parallel.zero=1", "recover.copies=1"}));
  residuals.forget("residual.1");
  residuals.expect_same_with_a_loss();
  EXPECT_EQ(residuals.line,
            "rank 1 is lost: part 1 of stage 0 from the copy on rank 2; not exact: residuals of "
            "gradients that were there are gone, going on behind step 4");
  Forgetting errors(onebit({"parallel.dp=4"}));
  errors.forget("worker_error_1");
  errors.forget("server_error", 1, 2, 4);
  errors.expect_same_with_a_loss();
  EXPECT_EQ(errors.line,
            "rank 1 is lost: stage 0 from its replica on rank 0; not exact: errors of 1-bit Adam "
            "that were there are gone, going on behind step 4");
}

/// Where fewer go on, what is left is dealt out anew. Whoever has begun with that has other
/// residuals than who has not: a recovery that is interrupted, or a step soon after, must not mix
/// them.
TEST(ElasticErrorsOfALostRank, AreThoseOfOneEpochHoweverOftenRecoveriesAreInterrupted) {
  for (const Settings& settings :
       {coded({"parallel.dp=4"}), coded({"parallel.dp=2", "parallel.pp=2"}),
        with(onebit({"parallel.dp=4"}), {"optim.freeze_step=2"})}) {
    const auto with_loss = [&](const std::vector<ElasticRun::Fault>& alarms, ElasticRun& run) {
      run.losses = {{3, {1}}};
      return run.train(alarms, false);
    };
    ElasticRun once(4, settings);
    const auto calls = with_loss({}, once).calls;
    std::mt19937_64 random(19);
    const auto soon = [&](std::int64_t all) {
      return all / 4 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all / 2));
    };
    for (int trial = 0; trial < 8; ++trial) {
      ElasticRun run(4, settings);
      const std::vector<ElasticRun::Fault> alarms = {{2, soon(calls[2]), true},
                                                     {3, soon(calls[3]), true}};
      SCOPED_TRACE(fmt::format("at calls {} and {}", alarms[0].fatal, alarms[1].fatal));
      const auto seen = with_loss(alarms, run);
      EXPECT_EQ(seen.failures, std::vector<std::string>());
      EXPECT_GE(seen.epochs, 2);
      expect_same_state(run.last(), once.last());
      run.expect_every_step_once();
    }
  }
}

/// Those that are left keep their own, also where they take the place of a lost one.
TEST(ElasticErrorsOfALostRank, AreSaidWhereFewerGoOn) {
  ElasticRun run(4, coded({"parallel.dp=4"}));
  const auto seen = run.train({{1, 60}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  const std::string source = epochs_of(run)[1]["source"];
  EXPECT_NE(source.find("not exact: residuals of gradients that were there are gone"),
            std::string::npos)
      << source;
  EXPECT_NE(source.find("what encoding lost on 4 ranks goes on on 3"), std::string::npos) << source;
}

/// What is kept twice is planned, and so are bytes.
TEST(ElasticErrors, TakeTheMemoryAndSendTheBytesThatWerePredicted) {
  for (const Settings& settings :
       {coded({"parallel.dp=4"}),
        coded({"parallel.dp=2", "parallel.pp=2", "parallel.zero=2", "recover.copies=1"}),
        onebit({"parallel.dp=4"})}) {
    ElasticRun run(4, settings);
    run.train({}, false);
    const Json report =
        parse_json(read_text_file(run.files().run_folder() / "report.json"), "report");
    for (const auto& [tag, row] : report.at("memory").items()) {
      EXPECT_EQ(row.at("predicted_bytes"), row.at("measured_peak_bytes")) << tag;
    }
    for (const auto& [axis, operations] : report.at("communication").items()) {
      for (const auto& [operation, row] : operations.items()) {
        EXPECT_EQ(row.at("predicted"), row.at("counted")) << axis << " " << operation;
      }
    }
  }
}

TEST(OnebitAdamOfElasticRuns, RefusesCopiesAndStagesThatAreMadeAnew) {
  for (const auto& [more, name] :
       {std::pair{Settings{"parallel.dp=2", "recover.copies=1"}, "recover.copies = 1"},
        {Settings{"parallel.pp=2", "recover.stages=\"checkfree\""}, "recover.stages"}}) {
    ElasticRun run(2, onebit(more));
    const auto seen = run.train({}, false);
    ASSERT_EQ(seen.failures.size(), 2u) << name;
    EXPECT_NE(seen.failures.front().find(fmt::format("\"onebit-adam\" and {}", name)),
              std::string::npos)
        << seen.failures.front();
  }
}

}  // namespace
}  // namespace heddle
