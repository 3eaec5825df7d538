#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "config/load.h"
#include "config/schema.h"

namespace heddle::config {
namespace {

/// Random values for every key, then the fewest changes that make them agree with each other.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed) {}

  RunConfig make() {
    RunConfig config;
    for (const auto& key : keys()) {
      if (chance(0.7)) key.field.set(config, value_for(key));
    }
    reconcile(config);
    return config;
  }

 private:
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  double number(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

  std::string text(bool is_path) {
    static const std::vector<std::string> kPieces = {
        "a", "B ", "\"", "\\", "'", "#", "=", ".", "\u00e9", "\u6f22", "\U0001F600", "\x7f", "[x]",
    };
    static const std::vector<std::string> kControl = {"\n", "\t", "\r", "\x01",
                                                      std::string(1, '\0')};
    std::string result = "x";
    for (auto n = integer(0, 12); n > 0; --n) {
      const auto& pieces = !is_path && chance(0.3) ? kControl : kPieces;
      result += pieces[static_cast<std::size_t>(integer(0, std::ssize(pieces) - 1))];
    }
    return result;
  }

  std::vector<DataSource> sources() {
    std::vector<DataSource> result;
    for (auto n = integer(0, 3); n > 0; --n) {
      result.push_back({text(true), number(0.1, 5), text(false) + std::to_string(n)});
    }
    return result;
  }

  Value value_for(const Key& key) {
    const auto limit = static_cast<std::int64_t>(std::min(key.maximum, 1e15));
    switch (key.field.type) {
      case Type::boolean: return chance(0.5);
      case Type::integer:
      case Type::bytes:
        return integer(static_cast<std::int64_t>(key.minimum),
                       chance(0.5) ? limit : limit / 1000 + 1);
      case Type::number: return number(key.minimum, key.maximum);
      // Texts with a grammar are made below.
      case Type::text: return key.field.problem ? key.default_value() : Value(text(false));
      case Type::path: return text(true);
      case Type::choice:
        return key.field
            .choices[static_cast<std::size_t>(integer(0, std::ssize(key.field.choices) - 1))];
      case Type::texts: {
        std::vector<std::string> list;
        for (auto n = integer(0, 3); n > 0; --n) list.push_back(text(false));
        return list;
      }
      case Type::sources: return sources();
    }
    return {};
  }

  /// Keys of other optimizers than the chosen one are left out.
  static void reconcile(OptimConfig& o) {
    const OptimConfig none;
    if (o.name == planner::Updates::adamw || o.name == planner::Updates::onebit_adam) {
      o.momentum = none.momentum, o.nesterov = none.nesterov;
    }
    if (o.name != planner::Updates::onebit_adam) {
      o.freeze_step = none.freeze_step;
      o.freeze_mask = none.freeze_mask;
    }
    if (o.name != planner::Updates::onebit_adam || o.freeze_step) {
      o.freeze_ratio = none.freeze_ratio;
    }
    if (o.name != planner::Updates::sgd || o.uses_nesterov() || o.used_momentum() == 0.0) {
      o.dampening = none.dampening;
    }
    if (o.name == planner::Updates::sgd && o.used_momentum() == 0.0) o.nesterov = none.nesterov;
    if (o.name == planner::Updates::muon) return;
    o.muon_lr = none.muon_lr;
    o.muon_scale = none.muon_scale;
    o.newton_schulz_steps = none.newton_schulz_steps;
  }

  /// Texts that name a codec.
  void reconcile(Compression& c) {
    for (auto* codec : {&c.gradients, &c.weights, &c.tensor, &c.pipeline, &c.experts}) {
      if (*codec) *codec = chance(0.5) ? "none" : "int8:256";
    }
  }

  /// What is frozen, or stops early, goes with what else there is.
  static void reconcile_tuning(RunConfig& c) {
    if (c.model.path.empty() || !c.lora.is_given()) c.lora = {};
    if (c.lora.is_given()) c.train.freeze.clear();
    if (c.lora.is_given() || !c.train.freeze.empty()) {
      c.recover.stages = LostStages::none;
      if (c.optim.name == planner::Updates::onebit_adam) c.optim = {};
    }
    if (c.train.eval_every == 0) c.train.patience = 0;
    if (c.data.kind == DataKind::chat) c.data.documents = Documents::mask;
    if (c.data.kind == DataKind::chat && !c.data.format.empty()) c.data.format = "csv";
    if (c.data.kind == DataKind::chat || c.recover.elastic) c.data.stream = false;
  }

  void reconcile(RunConfig& c) {
    reconcile(c.optim);
    reconcile(c.compress);
    if (c.model.preset.empty()) c.model.preset = "gpt2-124m";
    const auto source = integer(0, 2);
    if (source != 0) c.model.preset.clear();
    c.model.path = source == 1 ? "p" + c.model.path.string() : "";
    c.model.config = source == 2 ? "c" + c.model.config.string() : "";
    reconcile_tuning(c);
    if (c.model.capacity_factor == 0.0) {  // nothing is dropped
      c.model.drop = ModelConfig().drop;
      c.model.renorm_after_drop = false;
    }
    if (source == 1) c.model.vocab_size = 0;
    if (c.data.sources.empty() == c.data.train.empty()) {
      c.data.train = "t";
      c.data.sources.clear();
    }
    // What was loaded always says dp: where the file does not, it follows from the ranks.
    c.parallel.sites = c.parallel.dp = c.parallel.tp = c.parallel.pp = c.parallel.cp =
        c.parallel.ep = c.parallel.etp = c.parallel.chunks = 1;
    c.parallel.skip = 0.0;
    c.parallel.routes.clear();
    c.recover.recut = false;  // of pipelines only
    c.parallel.ep_exchange = chance(0.5) ? "" : "r=0 degree=2/3 2dh=8";
    if (c.parallel.vocabulary == VocabularyPlacement::pipeline)
      c.parallel.vocabulary = VocabularyPlacement::tensor;
    c.train.microbatch = std::min<std::int64_t>(c.train.microbatch, 1000);
    c.data.seq_len = std::min<std::int64_t>(c.data.seq_len, 10000);
    c.train.tokens_per_step = chance(0.3) ? 0 : c.tokens_per_microbatch() * integer(1, 100);
    c.train.steps = chance(0.5) ? integer(10, 1000) : 0;
    c.train.tokens = c.train.steps > 0 ? 0 : c.tokens_per_step() * 10;
    c.optim.min_lr = std::min(c.optim.min_lr, c.optim.lr);
    c.optim.warmup_steps = integer(0, 5);
    if (c.optim.freeze_step) c.optim.freeze_step = std::max<std::int64_t>(5, *c.optim.freeze_step);
    if (c.optim.name == planner::Updates::onebit_adam) {
      c.parallel.zero = std::min(c.parallel.zero, 1);
      c.compress.gradients = "none";
    }
    c.optim.decay_steps = c.optim.schedule == LrSchedule::wsd ? integer(1, 5) : 0;
    if (c.run.name.empty()) c.run.name = "named";
  }

  std::mt19937 random_;
};

TEST(RoundTrip, TheWrittenFileLoadsToAnEqualRun) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const RunConfig config = RandomRun(seed).make();
    const Origins origins = {{"optim.lr", "--set"}};
    for (const Origins* with : {static_cast<const Origins*>(nullptr), &origins}) {
      const auto text = to_toml(config, with);
      ASSERT_NO_THROW({ EXPECT_EQ(parse_run(text, "other.toml").config, config) << text; }) << text;
    }
  }
}

TEST(RoundTrip, OriginsAreWrittenAsComments) {
  const auto run =
      parse_run("[model]\npreset=\"llama-15m\"\n[data]\ntrain=\"t\"\n[train]\nsteps=3\n", "a.toml");
  const auto text = to_toml(run.config, &run.origins);
  EXPECT_NE(text.find("steps = 3                                # a.toml:6\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("# default\n"), std::string::npos);
}

}  // namespace
}  // namespace heddle::config
