// Runs of a model with experts by the program: what is counted, kept and refused.

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/inspect.h"
#include "engine/expert_files.h"
#include "model/config_testing.h"
#include "support/occurrences.h"
#include "support/source_dir.h"
#include "train/huge_weights.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// A TinyRun whose model has a dense layer and two of six experts.
class ExpertsRun : public TinyRun {
 public:
  explicit ExpertsRun(const Json& changes = Json::object()) {
    Json config = {{"model_type", "heddle_moe"},    {"hidden_size", 48},
                   {"intermediate_size", 64},       {"moe_intermediate_size", 24},
                   {"num_hidden_layers", 3},        {"first_k_dense_replace", 1},
                   {"n_routed_experts", 6},         {"num_experts_per_tok", 2},
                   {"num_attention_heads", 4},      {"num_key_value_heads", 2},
                   {"max_position_embeddings", 64}, {"vocab_size", 61},
                   {"rms_norm_eps", 1e-5},          {"topk_method", "noaux_tc"},
                   {"tie_word_embeddings", false}};
    config.update(changes);
    write("config.json", config.dump());
  }
};

std::vector<std::string> and_with(std::vector<std::string> settings,
                                  const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

const std::vector<std::string> kSteady = {"optim.schedule=constant", "observe.console_every=1",
                                          "model.router_aux_loss=0.1"};

/// Biases, the load that the next step's losses go by, and what is drawn for tokens.
TEST(ExpertsRun, GoesOnAsIfItHadNotStopped) {
  const auto settings = and_with(
      kSteady, {"train.eval_every=4", "model.router_balance=global", "model.router_noise=gumbel",
                "model.capacity_factor=0.8", "model.drop=random", "model.router_bias_rate=0.01"});
  const ExpertsRun whole, broken;
  const Outcome once = whole.train(settings);
  ASSERT_EQ(once.status, 0) << once.err;
  ASSERT_EQ(broken.train(and_with(settings, {"train.steps=4"})).status, 0);
  const Outcome resumed = broken.train(settings);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(broken.numbers(), whole.numbers());
  expect_same_state(broken.checkpoint(10), whole.checkpoint(10));
}

TEST(ExpertsRun, SaysHowOftenExpertsWereChosen) {
  const ExpertsRun run;
  const auto settings = and_with(kSteady, {"model.capacity_factor=0.7"});
  const Outcome outcome = run.train(settings);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::int64_t dropped = 0;
  int lines = 0;
  for (const Json& line : run.metrics()) {
    if (!line.contains("loss")) continue;
    ++lines;
    const Json& load = line.at("expert_load");
    ASSERT_EQ(load.size(), 2u);
    EXPECT_EQ(load[0]["layer"], 1);
    EXPECT_EQ(load[1]["layer"], 2);
    for (const Json& layer : load) {
      const auto counts = layer.at("counts").get<std::vector<std::int64_t>>();
      EXPECT_EQ(counts.size(), 6u);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 2 * 128);
      dropped += layer.at("dropped").get<std::int64_t>();
    }
  }
  EXPECT_EQ(lines, 10);
  EXPECT_GT(dropped, 0);
  const Json report = parse_json(read_text_file(run.run_folder() / "report.json"), "report.json");
  EXPECT_EQ(report["experts"]["step"].size(), 10u);
  EXPECT_EQ(report["experts"]["by_layer"].size(), 2u);
  const std::string page = read_text_file(run.run_folder() / "report.html");
  EXPECT_NE(page.find("id=\"experts\""), std::string::npos);
  EXPECT_NE(page.find("Dropped choices by layer, over time"), std::string::npos);
  EXPECT_EQ(page.find("Exchanges of rows by rank"), std::string::npos) << "one rank has none";
}

/// Ranks count together what one rank counts.
TEST(ExpertsRun, CountsTheSameOnSeveralRanks) {
  const auto load_of = [](const ExpertsRun& run) {
    return run.metrics().front().at("expert_load");
  };
  const ExpertsRun one, two;
  ASSERT_EQ(one.train(kSteady).status, 0);
  const Outcome outcome = two.train(and_with(kSteady, {"parallel.ep=2"}), {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(load_of(two), load_of(one));
}

TEST(ExpertsRun, SaysWhatOfTheirExchangesWasHidden) {
  const ExpertsRun run;
  const Outcome outcome = run.train(
      and_with(kSteady, {"parallel.ep=2", "parallel.ep_exchange=degree=2"}), {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(read_text_file(run.run_folder() / "report.json"), "report.json");
  const Json& by_rank = report["experts"]["exchanges_by_rank"];
  ASSERT_EQ(by_rank.size(), 2u);
  const double step = report["step_seconds"]["measured_mean"].is_number()
                          ? report["step_seconds"]["measured_mean"].get<double>()
                          : report["totals"]["seconds"].get<double>();
  for (const Json& rank : by_rank) {
    EXPECT_GT(rank["exposed_seconds"].get<double>() + rank["hidden_seconds"].get<double>(), 0.0);
    // A rank waits for one exchange at a time.
    EXPECT_LE(rank["exposed_seconds"].get<double>(), step);
    EXPECT_GE(rank["hidden_seconds"].get<double>(), 0.0);
  }
  const std::string page = read_text_file(run.run_folder() / "report.html");
  EXPECT_NE(page.find("Exchanges of rows by rank"), std::string::npos);
  EXPECT_EQ(page.find("Dropped choices by layer"), std::string::npos) << "nothing was";
}

/// Nothing is left to chance but what `adaptive` chooses by time: losses, loads and every bit of
/// weights and optimizer.
TEST(ExpertsRun, TwiceHasTheSameBits) {
  for (const char* exchange : {"", "degree=2 2dh=2"}) {
    const auto settings = and_with(
        kSteady, {"parallel.ep=4", fmt::format("parallel.ep_exchange={}", exchange),
                  "train.microbatch=1", "train.eval_every=5", "model.router_bias_rate=0.01"});
    const Json eight = {{"n_routed_experts", 8}};
    const ExpertsRun first(eight), second(eight);
    for (const ExpertsRun* run : {&first, &second}) {
      const Outcome outcome = run->train(settings, {"--ranks", "4"});
      ASSERT_EQ(outcome.status, 0) << outcome.err;
    }
    EXPECT_EQ(second.numbers(), first.numbers());
    expect_same_state(second.checkpoint(10), first.checkpoint(10));
  }
}

std::string machine_file() { return source_dir() + "/configs/systems/h200-hgx-ndr.toml"; }

/// Degrees that are planned are printed, and are those of a run that names them.
TEST(ExpertsRun, HasThePlannedDegreesOnAllRanks) {
  const auto settings = and_with(
      kSteady, {"parallel.ep=2", "train.steps=3", "observe.system=\"" + machine_file() + "\""});
  const auto with = [&](const std::string& exchange) {
    return and_with(settings, {"parallel.ep_exchange=" + exchange});
  };
  const ExpertsRun planned, named;
  const Outcome plan =
      planned.train(with("degree=planned"), {"--ranks", "2", "--dry-run", "--json"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.err.find("backward, planned from " + machine_file()), std::string::npos)
      << plan.err;
  const std::string exchange = parse_json(plan.out, "plan").at("mesh").at("ep_exchange");
  const Outcome outcome = planned.train(with("degree=planned"), {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(named.train(with(exchange), {"--ranks", "2"}).status, 0);
  EXPECT_EQ(planned.numbers(), named.numbers());
}

/// Sums of gradients that wait for experts are planned and printed, and change no number.
TEST(ExpertsRun, HasTheSameNumbersWithPlannedWindows) {
  const auto settings = and_with(kSteady, {"parallel.ep=2", "parallel.zero=1", "train.steps=3",
                                           "observe.system=\"" + machine_file() + "\""});
  const auto with = [&](const std::string& exchange) {
    return and_with(settings, {"parallel.ep_exchange=" + exchange});
  };
  const ExpertsRun planned, plain;
  const std::string both = "degree=2/4 windows=planned";
  const Outcome plan = planned.train(with(both), {"--ranks", "2", "--dry-run", "--json"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.err.find("beside the rest of their blocks, planned from"), std::string::npos)
      << plan.err;
  const Json said = parse_json(plan.out, "plan");
  std::int64_t elements = 0;
  for (const Json& window : said.at("mesh").at("sum_windows")) {
    elements += window.at("with_experts").get<std::int64_t>();
    elements += window.at("with_rest").get<std::int64_t>();
  }
  EXPECT_GT(elements, 0);
  const Outcome outcome = planned.train(with(both), {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(plain.train(with("degree=2/4"), {"--ranks", "2"}).status, 0);
  EXPECT_EQ(planned.numbers(), plain.numbers());
}

/// All plans are tried, that with every expert's weights on every rank too, which is most here.
TEST(ExpertsRun, HoldsNoMoreThanWasSaidWhileItTriesExchanges) {
  for (const char* exchange : {"adaptive", "turns"}) {
    const ExpertsRun run(Json{{"n_routed_experts", 32}, {"topk_method", "greedy"}});
    const auto settings =
        and_with(kSteady, {"parallel.ep=2", "parallel.etp=2", "train.microbatch=1",
                           "parallel.zero=1", fmt::format("parallel.ep_exchange={}", exchange)});
    const Outcome plan = run.train(settings, {"--ranks", "4", "--dry-run", "--json"});
    ASSERT_EQ(plan.status, 0) << plan.err;
    const Json said = parse_json(plan.out, "plan").at("ranks").at(0).at("memory_bytes");
    const Outcome outcome = run.train(settings, {"--ranks", "4"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json report = parse_json(read_text_file(run.run_folder() / "report.json"), "report.json");
    for (const Json& rank : report.at("memory_by_rank")) {
      const auto held = rank.at("measured_peak_bytes").get<std::int64_t>();
      EXPECT_LE(held, said.at("peak_at_most").get<std::int64_t>()) << exchange;
      EXPECT_GT(held, said.at("peak").get<std::int64_t>()) << "what is tried takes more";
    }
  }
}

/// Weights that are finite, and logits that are not: whoever has the tokens, all ranks say whose.
/// Whether such products are infinite or no numbers is the processor's; a loss is of both where it
/// is of logits.
TEST(ExpertsRun, NamesTheRouterWhoseLogitsAreNotFinite) {
  const ExpertsRun run;
  const std::string origin = (run.path() / "origin").string(),
                    huge = (run.path() / "huge").string();
  ASSERT_EQ(run.train({"run.dir=" + origin, "train.steps=2"}).status, 0);
  copy_with_huge(std::filesystem::path(origin) / "checkpoints" / checkpoint_name(2),
                 "model.layers.2.mlp.gate.weight", huge);
  for (const char* ranks : {"1", "2"}) {
    for (const char* policy : {"stop", "skip"}) {
      const Outcome outcome = run.train(
          {"model.config=\"\"", "model.path=" + huge, "checkpoint.every=0", "train.eval_every=0",
           "train.nonfinite_limit=2", fmt::format("parallel.ep={}", ranks),
           fmt::format("train.nonfinite={}", policy), "model.router_balance=global"},
          {"--ranks", ranks, "--fresh"});
      EXPECT_EQ(outcome.status, 5) << outcome.err;
      for (const char* words : {"router with logits that are not finite is that of layer 2",
                                "model.layers.2.mlp.gate", "model.router_z_loss = 0.001"}) {
        EXPECT_NE(outcome.err.find(words), std::string::npos) << words << "\nin: " << outcome.err;
      }
      EXPECT_EQ(occurrences(outcome.err, "update skipped,"),
                *policy == 's' && policy[1] == 'k' ? 2u : 0u);
    }
  }
}

/// From a Hugging Face folder in either form, through a checkpoint of ranks that divide experts, to
/// a folder of one tensor for each expert: the same values. Steps are too small to move any.
TEST(ExpertsRun, ExportsWhatItImported) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    const Json config = with(small_config(family), {{"num_attention_heads", 4},
                                                    {"num_key_value_heads", 2},
                                                    {"num_experts", 8},
                                                    {"max_position_embeddings", 64},
                                                    {"vocab_size", 61}});
    const ModelSpec spec = spec_of(config);
    Memory memory;
    const Tensors tensors = random_weights(spec, memory);
    for (const bool is_stacked : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", family, is_stacked));
      const TinyRun run;
      const auto at = [&](const char* name) { return (run.path() / name).string(); };
      write(is_stacked ? stacked(spec, tensors, memory) : tensors, at("model"));
      run.write("model/config.json", config.dump());
      const Outcome trained = run.train(
          {"model.config=\"\"", "model.path=" + at("model"), "parallel.ep=4", "parallel.etp=1",
           "optim.lr=1e-30", "train.steps=2", "train.microbatch=1", "parallel.zero=1"},
          {"--ranks", "4"});
      ASSERT_EQ(trained.status, 0) << trained.err;
      const Outcome exported =
          run_heddle({"convert", run.checkpoint(2).string(), "--out", at("exported")});
      ASSERT_EQ(exported.status, 0) << exported.err;
      // What it is to be, whatever form was read.
      write(tensors, at("expected"));
      EXPECT_TRUE(compare(at("exported"), at("expected")).are_equal());
      EXPECT_EQ(std::filesystem::exists(run.path() / "exported" / "config.json"), true);
    }
  }
}

TEST(ExpertsRun, MovesBiasesBesideStatesThatLieOtherwiseThanGradients) {
  const ExpertsRun run;
  const Outcome outcome =
      run.train(and_with(kSteady, {"optim.name=onebit-adam", "optim.freeze_step=3",
                                   "model.router_bias_rate=0.01", "train.microbatch=1"}),
                {"--ranks", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(ExpertsRun, SavesBiasesUnderTheirName) {
  const ExpertsRun run;
  ASSERT_EQ(run.train(kSteady).status, 0);
  bool is_there = false;
  for (const auto& [name, bytes] : tensors_of(run.checkpoint(10))) {
    is_there = is_there || bytes.find("\"model.layers.2.mlp.gate.e_score_correction_bias\"") !=
                               std::string::npos;
  }
  EXPECT_TRUE(is_there);
}

void expect_refused(const TinyRun& run, const std::vector<std::string>& settings,
                    const std::vector<std::string>& words) {
  const Outcome outcome = run.train(settings);
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  for (const std::string& word : words) {
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << "\nin: " << outcome.err;
  }
}

TEST(ExpertsRun, RefusesToPlanDegreesWithoutAMachine) {
  expect_refused(ExpertsRun(), {"parallel.ep=2", "parallel.ep_exchange=degree=planned"},
                 {"degree=planned", "observe.system names none", "doctor --calibrate"});
}

TEST(ExpertsRun, RefusesWindowsThatCannotBePlannedOrUsed) {
  expect_refused(ExpertsRun(), {"parallel.ep=2", "parallel.ep_exchange=windows=planned"},
                 {"windows=planned", "observe.system names none", "leave out windows=planned"});
  expect_refused(ExpertsRun(),
                 {"parallel.ep=2", "parallel.zero=2", "parallel.ep_exchange=windows=planned",
                  "observe.system=\"" + machine_file() + "\""},
                 {"windows=planned", "parallel.zero = 2", "use parallel.zero = 1"});
}

TEST(ExpertsRun, RefusesWhatGatesCannotDo) {
  expect_refused(TinyRun(), {"model.capacity_factor=1.25", "model.drop=random"},
                 {"model.capacity_factor", "model.drop", "no experts"});
  const ExpertsRun plain(Json{{"topk_method", "greedy"}});
  expect_refused(plain, {"model.router_bias_rate=0.01"}, {"model.router_bias_rate", "no bias"});
  expect_refused(plain, {"model.capacity_factor=-1"}, {"model.capacity_factor = -1", "tutel"});
  expect_refused(plain, {"model.capacity_factor=0.01", "model.capacity_rule=tutel"},
                 {"model.capacity_factor = 0.01", "no room"});
  expect_refused(plain, {"model.drop=everybody"}, {"model.drop", "low-scores"});
  expect_refused(plain, {"model.drop=random"}, {"remove model.drop", "model.capacity_factor = 0"});
  expect_refused(plain, {"model.renorm_after_drop=true"},
                 {"remove model.renorm_after_drop", "model.capacity_factor = 0"});
}

}  // namespace
}  // namespace heddle
