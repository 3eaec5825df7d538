// Held-out loss by source: that of each source alone, whatever the mesh, and in all that a run
// says.

#include <gtest/gtest.h>

#include <cmath>

#include "comm/threads/thread_world.h"
#include "engine/weights.h"
#include "model/config_testing.h"
#include "train/evaluate.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSeqLen = 12;

ModelSpec small_model() {
  return spec_of(with(small_config("llama"), {{"num_hidden_layers", 2},
                                              {"hidden_size", 32},
                                              {"num_attention_heads", 4},
                                              {"num_key_value_heads", 2},
                                              {"max_position_embeddings", 64},
                                              {"vocab_size", 61}}));
}

/// Three sources of different sizes; of the last only some tokens are answers.
class HeldOutBySource : public testing::Test {
 protected:
  HeldOutBySource() {
    std::vector<std::int32_t> ids;
    std::vector<bool> answers;
    for (std::int32_t i = 0; i < 400; ++i) {
      ids.push_back(i * i % 61);
      answers.push_back(i % 7 < 3);
    }
    const auto write = [&](const std::string& name, std::size_t from, std::size_t tokens,
                           const std::vector<bool>& which) {
      write_token_file(real_file_system(), run_.path() / name, {.vocab_size = 61},
                       std::span(ids).subspan(from, tokens), std::vector<std::int64_t>{0}, which);
    };
    write("large.tokens", 0, 310, {});
    write("small.tokens", 100, 29, {});
    write("chat.tokens", 0, 400, answers);
  }

  DatasetOptions of(const std::vector<std::string>& names) const {
    DatasetOptions options{.sources = {}, .seq_len = kSeqLen, .holdout = 1.0};
    for (const std::string& name : names) {
      options.sources.push_back({.file = run_.path() / (name + ".tokens"), .name = name});
    }
    return options;
  }

  EvalResult on(const ParallelRequest& request, const Dataset& data,
                const EvalOptions& evaluation) const {
    EvalResult last;
    const auto ranks = static_cast<int>(request.ranks());
    run_ranks(ranks, [&](World& world) {
      Memory memory;
      Stream stream(1);
      const ModelSpec spec = small_model();
      const ParallelPlan plan = make_plan(spec, request, ranks, kSeqLen);
      const Mesh mesh(plan.mesh, world.all());
      Model model(spec, {.positions = kSeqLen}, plan, mesh, ParamStore::Purpose::inference, memory);
      initialize(model.store(), 3, stream);
      const EvalResult result = evaluate(model, data, evaluation, stream, memory);
      if (world.rank() == ranks - 1) last = result;
    });
    return last;
  }

  const TinyRun run_;
  const std::vector<std::string> names_ = {"large", "small", "chat"};
};

TEST_F(HeldOutBySource, IsThatOfTheSourceAloneOnEveryMesh) {
  std::vector<EvalResult> alone;
  for (const std::string& name : names_) {
    const Dataset data(of({name}));
    alone.push_back(on({.dp = 1}, data, {.rows = 3, .on_progress = {}}));
    EXPECT_TRUE(alone.back().sources.empty()) << "one source is the whole";
  }
  EXPECT_GT(std::abs(alone[0].loss - alone[2].loss), 1e-3) << "sources that do not differ";
  const Dataset data(of(names_));
  const ParallelRequest meshes[] = {
      {.dp = 1},          {.dp = 2, .zero = 3},
      {.dp = 3},          {.dp = 1, .tp = 2, .sequence = true},
      {.dp = 1, .pp = 2}, {.dp = 2, .pp = 2, .vocabulary = VocabularyPlacement::pipeline},
      {.dp = 1, .cp = 2}, {.dp = 2, .tp = 2, .cp = 2},
  };
  for (const ParallelRequest& mesh : meshes) {
    SCOPED_TRACE(fmt::format("dp {} tp {} pp {} cp {}", mesh.dp, mesh.tp, mesh.pp, mesh.cp));
    const EvalResult result = on(mesh, data, {.rows = 2, .on_progress = {}});
    ASSERT_EQ(result.sources.size(), names_.size());
    double sum = 0.0;
    std::int64_t targets = 0;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      EXPECT_EQ(result.sources[i].name, names_[i]);
      EXPECT_EQ(result.sources[i].targets, alone[i].targets);
      EXPECT_NEAR(result.sources[i].loss, alone[i].loss, 1e-6);
      sum += alone[i].loss * static_cast<double>(alone[i].targets);
      targets += alone[i].targets;
    }
    EXPECT_EQ(result.targets, targets);
    EXPECT_NEAR(result.loss, sum / static_cast<double>(targets), 1e-6);
  }
}

TEST_F(HeldOutBySource, LeavesNoSourceOutWhenFewTokensAreAskedFor) {
  const Dataset data(of(names_));
  const auto windows = [&](std::int64_t tokens) { return windows_to_evaluate(data, tokens); };
  EXPECT_EQ(windows(0), data.eval_windows());
  EXPECT_EQ(windows(1), 3);
  EXPECT_LT(windows(30 * kSeqLen), 30 + 3);
  EXPECT_GE(windows(30 * kSeqLen), 30);
  std::int64_t seen = 0;
  const auto progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_EQ(all, windows(30 * kSeqLen));
    seen = done;
    return true;
  };
  const EvalResult result =
      on({.dp = 1}, data, {.rows = 4, .max_tokens = 30 * kSeqLen, .on_progress = progress});
  EXPECT_EQ(seen, windows(30 * kSeqLen));
  for (const EvalResult::Source& source : result.sources) EXPECT_GT(source.targets, 0);
}

TEST_F(HeldOutBySource, WithoutAnswersInItIsNoNumber) {
  write_token_file(real_file_system(), run_.path() / "mute.tokens", {.vocab_size = 61},
                   std::vector<std::int32_t>(40, 5), std::vector<std::int64_t>{0},
                   std::vector<bool>(40, false));
  const Dataset data(of({"large", "mute"}));
  const EvalResult result = on({.dp = 1}, data, {.rows = 4, .on_progress = {}});
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_TRUE(std::isnan(on({.dp = 1}, Dataset(of({"mute"})), {.on_progress = {}}).loss));
  EXPECT_TRUE(std::isnan(result.sources[1].loss));
  EXPECT_EQ(result.sources[1].targets, 0);
}

/// A conversation of which no window but the last has an answer.
class LongConversation : public testing::Test {
 protected:
  LongConversation() {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 900; ++i) ids.push_back(i * i % 61);
    std::vector<bool> answers(ids.size(), false);
    answers.back() = true;
    write_token_file(real_file_system(), data_, {.vocab_size = 61}, ids,
                     std::vector<std::int64_t>{0, 20}, answers);
  }
  static constexpr const char* kCut = "1 of 2 conversations is longer than sequences of";
  const TinyRun run_;
  const fs::path data_ = run_.path() / "long.tokens";
};

TEST_F(LongConversation, IsNamedAndStepsWithoutAnAnswerHaveNoLoss) {
  const Outcome outcome = run_.train(
      {"data.train=" + data_.string(), "data.kind=chat", "train.steps=2", "train.eval_every=1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find(kCut), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("none of its tokens is to be learnt"), std::string::npos);
  EXPECT_TRUE(run_.metrics().front()["loss"].is_null()) << run_.metrics().front();
}

TEST_F(LongConversation, WithoutAnAnswerInWhatIsLookedAtIsNotEvaluated) {
  ASSERT_EQ(run_.train().status, 0);
  const Outcome outcome = run_heddle({"eval", run_.run_folder().string(), "--chat", "--data",
                                      data_.string(), "--seq", "32", "--max-tokens", "64"});
  EXPECT_EQ(outcome.status, 5) << outcome.err;
  EXPECT_NE(outcome.err.find("no token belongs to an answer"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(kCut), std::string::npos) << outcome.err;
}

TEST(Conversations, AreWrittenByTheTemplateBesideATokenizerWithoutAFolder) {
  const TinyRun run;
  run.write_text();
  run.write("chat.jsonl", R"({"prompt": "a", "completion": "Two birds sing."})");
  run.write("chat_template.jinja",
            "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}");
  const Outcome outcome = run_heddle(
      run.command({"data.train=chat.jsonl", "data.kind=chat", "data.tokenizer=tokenizer.json",
                   "data.seq_len=8", "train.tokens_per_step=0", "data.holdout=0"},
                  {"--dry-run"}),
      {.folder = run.path()});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(HeldOutOfARun, IsSaidBySourceInLinesMetricsAndReport) {
  const TinyRun run;
  run.use_two_sources();
  const Outcome outcome = run.train({"train.eval_every=5"}, {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find(" | data "), std::string::npos) << outcome.err;
  std::size_t evaluations = 0;
  Json last;
  for (const Json& line : run.metrics()) {
    if (!line.contains("eval_loss")) continue;
    ++evaluations;
    last = line;
    const double data = line.at("eval_sources").at("data"), other = line["eval_sources"]["other"];
    EXPECT_NEAR(line["eval_loss"].get<double>(), (data + other) / 2, 0.02);  // nearly equal sizes
  }
  EXPECT_EQ(evaluations, 2u);
  const Json report = read_json_file(run.run_folder() / "report.json");
  EXPECT_EQ(report["curves"]["eval_sources"]["other"]["value"][1], last["eval_sources"]["other"]);
  // The same model and texts, by hand.
  const Outcome eval = run_heddle({"eval", run.run_folder().string(), "--data",
                                   (run.path() / "data.tokens").string(), "--data",
                                   (run.path() / "other.tokens").string(), "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const Json sources = parse_json(eval.out, "eval")["sources"];
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[1]["name"], (run.path() / "other.tokens").string());
  EXPECT_EQ(sources[1]["tokens"], 60 * 99);
}

}  // namespace
}  // namespace heddle
