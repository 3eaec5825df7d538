#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "train/fake_company.h"
#include "train/model_setup.h"
#include "train/tiny_run.h"
#include "train/trainer.h"

namespace heddle {

using Settings = std::vector<std::string>;

/// A run of a few steps whose ranks are threads.
class ElasticRun {
 public:
  /// `changes`: to the model's config.
  explicit ElasticRun(int ranks, Settings settings, const Json& changes = {}) : ranks_(ranks) {
    Json model = {{"model_type", "llama"},         {"hidden_size", 16},
                  {"intermediate_size", 24},       {"num_hidden_layers", 4},
                  {"num_attention_heads", 2},      {"num_key_value_heads", 2},
                  {"max_position_embeddings", 64}, {"vocab_size", 61},
                  {"rms_norm_eps", 1e-5},          {"tie_word_embeddings", true}};
    if (!changes.is_null()) model.update(changes);
    run_.write("config.json", model.dump());
    const Settings usual = {
        "train.steps=6",   "train.tokens_per_step=256", "train.microbatch=1",  "checkpoint.every=3",
        "parallel.zero=0", "observe.report=true",       "train.eval_tokens=64"};
    settings.insert(settings.begin(), usual.begin(), usual.end());
    config_ = load_run(run_.path() / "run.toml", settings, ranks).config;
  }

  /// A member that is lost at its call `fatal`, and whoever comes in its place; or one that takes
  /// others for lost there, who are not.
  struct Fault {
    int member = 0;
    std::int64_t fatal = 0;
    bool is_false_alarm = false;
  };

  /// FakeCompany::losses.
  std::map<std::int64_t, std::set<int>> losses;

  struct Seen {
    std::vector<std::int64_t> calls;  ///< of the first members
    int epochs = 0;
    std::vector<std::string> failures;
    std::vector<TrainOutcome> outcomes;
  };

  /// Where `replaces`, a newcomer takes the place of each that is lost; the n-th that comes is lost
  /// at call later[n], if there is one.
  /// `joining`: so many come when the others have begun.
  Seen train(const std::vector<Fault>& faults, bool replaces, std::vector<std::int64_t> later = {},
             std::uint64_t seed = 1, int joining = 0) {
    FakeCompany company(seed);
    company.replaces = replaces;
    company.losses = losses;
    company.expect(ranks_);
    Seen seen;
    std::mutex mutex;
    std::vector<std::unique_ptr<FakeCompany::Seat>> seats;
    std::vector<std::thread> threads;
    std::size_t came = 0;
    std::function<void(std::int64_t, std::int64_t)> start = [&](std::int64_t fatal,
                                                                std::int64_t alarm) {
      seats.push_back(company.seat(fatal, alarm));
      threads.emplace_back([&, seat = seats.back().get()] {
        try {
          const TrainOutcome outcome = heddle::train(config_, options(), *seat);
          const std::lock_guard lock(mutex);
          seen.outcomes.push_back(outcome);
        } catch (const Killed&) {
          const std::lock_guard lock(mutex);
          if (replaces) start(came < later.size() ? later[came++] : kNever, kNever);
        } catch (const std::exception& error) {
          seat->fail();
          const std::lock_guard lock(mutex);
          seen.failures.emplace_back(error.what());
        }
      });
    };
    {
      const std::lock_guard lock(mutex);
      for (int member = 0; member < ranks_; ++member) {
        std::int64_t fatal = kNever, alarm = kNever;
        for (const Fault& fault : faults) {
          if (fault.member == member) (fault.is_false_alarm ? alarm : fatal) = fault.fatal;
        }
        start(fatal, alarm);
      }
    }
    while (joining > 0 && company.epochs() == 0) std::this_thread::yield();
    for (; joining > 0; --joining) {
      const std::lock_guard lock(mutex);
      start(kNever, kNever);
    }
    for (std::size_t i = 0;; ++i) {
      std::thread thread;
      {
        const std::lock_guard lock(mutex);
        if (i == threads.size()) break;
        thread = std::move(threads[i]);
      }
      thread.join();
    }
    for (int member = 0; member < ranks_; ++member) {
      seen.calls.push_back(seats[static_cast<std::size_t>(member)]->calls());
    }
    seen.epochs = company.epochs();
    return seen;
  }

  /// Without a Company.
  void train_in_one_world() {
    run_ranks(ranks_, [&](World& world) { heddle::train(config_, options(), world); });
  }

  static TrainOptions options() {
    TrainOptions options;
    options.terminal.is_silent = true;
    options.program_version = "test";
    return options;
  }
  const config::RunConfig& config() const { return config_; }
  const TinyRun& files() const { return run_; }
  std::int64_t steps() const { return config_.total_steps(); }
  std::filesystem::path last() const { return run_.checkpoint(steps()); }
  /// Every step once, in order.
  void expect_every_step_once() const {
    std::int64_t step = 0;
    for (const Json& line : run_.metrics()) {
      if (!line.contains("loss")) continue;
      EXPECT_EQ(line["step"].get<std::int64_t>(), ++step);
    }
    EXPECT_EQ(step, steps());
  }

 private:
  static constexpr std::int64_t kNever = std::int64_t{1} << 60;

  const int ranks_;
  TinyRun run_;
  config::RunConfig config_;
};

inline void expect_near_losses(const ElasticRun& run, const ElasticRun& undisturbed,
                               double tolerance = 2e-5) {
  const auto losses = [](const ElasticRun& of) {
    std::vector<double> losses;
    for (const Json& line : of.files().metrics()) {
      if (line.contains("loss")) losses.push_back(line["loss"]);
    }
    return losses;
  };
  const auto own = losses(run), expected = losses(undisturbed);
  ASSERT_EQ(own.size(), expected.size());
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], tolerance) << i;
}

/// One of a member's calls, at random.
inline std::int64_t any_call(const std::vector<std::int64_t>& calls, int member,
                             std::mt19937_64& random) {
  const auto all = static_cast<std::uint64_t>(calls[static_cast<std::size_t>(member)]);
  return static_cast<std::int64_t>(random() % all) + 1;
}

struct MeshCase {
  const char* name;
  Settings settings;
  Json model = {};  ///< changes to it
};

/// So many losses of a mesh, or more where HEDDLE_TEST_LOSSES asks for them.
inline int trials(int every_day = 12) {
  const char* const asked = std::getenv("HEDDLE_TEST_LOSSES");
  return asked != nullptr ? std::atoi(asked) : every_day;
}

/// A rank is lost at any call: the run ends with the weights of one in which none was.
inline void expect_losses_without_a_trace(int ranks, const MeshCase& mesh, int losses) {
  ElasticRun undisturbed(ranks, mesh.settings, mesh.model);
  const auto calls = undisturbed.train({}, true).calls;
  std::mt19937_64 random(7);
  for (int trial = 0; trial < losses; ++trial) {
    ElasticRun run(ranks, mesh.settings, mesh.model);
    const int victim = trial % ranks;
    const std::int64_t all = calls[static_cast<std::size_t>(victim)];
    const std::int64_t fatal = any_call(calls, victim, random);
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", victim, fatal, all));
    const auto seen = run.train({{victim, fatal}}, true, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    // How often a run looks for its save differs: the last calls may not be made.
    EXPECT_GE(seen.epochs, fatal < all * 3 / 4 ? 2 : 1);
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// A second member of four is lost while the first is replaced, or the newcomer is while it is
/// given its state. Members 0 and 3 each have a replica that stays.
inline void expect_two_losses_without_a_trace(const Settings& settings, int losses) {
  ElasticRun undisturbed(4, settings);
  undisturbed.train({}, true);
  std::mt19937_64 random(11);
  for (int trial = 0; trial < losses; ++trial) {
    ElasticRun run(4, settings);
    const std::int64_t fatal = 30 + static_cast<std::int64_t>(random() % 60);
    const std::int64_t later = 1 + static_cast<std::int64_t>(random() % 60);
    SCOPED_TRACE(fmt::format("at {}, then {}", fatal, later));
    const auto seen = trial % 2 == 0
                          ? run.train({{0, fatal}, {3, fatal + later}}, true, {}, random())
                          : run.train({{0, fatal}}, true, {later}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_GE(seen.epochs, 2);
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// What report.json says of the epochs.
inline Json epochs_of(const ElasticRun& run) {
  return parse_json(read_text_file(run.files().run_folder() / "report.json"), "report")["epochs"];
}

}  // namespace heddle
