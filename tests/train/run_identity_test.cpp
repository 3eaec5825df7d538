#include "train/run_identity.h"

#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "comm/threads/thread_world.h"
#include "config/load.h"
#include "model/registry.h"
#include "train/rank_agreement.h"

namespace heddle {
namespace {

using config::Scope;

Json model_config() {
  return Json{{"model_type", "llama"},         {"hidden_size", 48},
              {"intermediate_size", 96},       {"num_hidden_layers", 2},
              {"num_attention_heads", 4},      {"num_key_value_heads", 2},
              {"max_position_embeddings", 64}, {"vocab_size", 61},
              {"rms_norm_eps", 1e-5},          {"tie_word_embeddings", false}};
}

RunIdentity identity(const config::RunConfig& config, const Json& model = model_config()) {
  return identity_of_start(config, model_spec(model, "config.json"), RunTokenizer{}, "1.2.3");
}

config::RunConfig settings(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"train.steps=10"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::parse_settings(all);
}

/// Names of what differs, with the given scope.
std::set<std::string> names(const RunIdentity& then, const RunIdentity& now, Scope scope) {
  std::set<std::string> found;
  for (const auto& difference : now.differences_from(then.to_json())) {
    if (difference.scope == scope) found.insert(difference.name);
  }
  return found;
}

/// A value other than the one that `key` has.
config::Value changed(const config::Key& key, const config::Value& value) {
  switch (key.field.type) {
    case config::Type::boolean:
      return !(std::holds_alternative<bool>(value) && std::get<bool>(value));
    case config::Type::integer:
    case config::Type::bytes:
      return std::holds_alternative<std::int64_t>(value) ? std::get<std::int64_t>(value) + 1
                                                         : std::int64_t{7};
    case config::Type::number:
      return std::holds_alternative<double>(value) ? std::get<double>(value) / 2 + 0.125 : 0.375;
    case config::Type::choice:
      for (const std::string& choice : key.field.choices) {
        if (config::Value(choice) != value) return choice;
      }
      return value;
    case config::Type::text:
      if (key.full_name() == "parallel.ep_exchange") return std::string("degree=2");
      [[fallthrough]];
    case config::Type::path: return std::string("something else");
    case config::Type::texts: return std::vector<std::string>{"something else"};
    case config::Type::sources: return std::vector<config::DataSource>{{"a", 1.0, "a"}};
  }
  return value;
}

TEST(RunIdentity, KnowsAChangeOfEveryKeyThatIsNotAProcesssOwn) {
  const config::RunConfig then = settings({"parallel.sites=2"});  // [outer] has no effect with one
  for (const config::Key& key : config::keys()) {
    config::RunConfig now = then;
    const config::Value value = changed(key, key.field.get(then));
    if (value == key.field.get(then)) continue;  // a choice of one
    key.field.set(now, value);
    std::set<std::string> differing;
    for (const auto& one : identity(now).differences_from(identity(then).to_json())) {
      differing.insert(one.name);
    }
    const bool is_compared = key.scope != Scope::process && key.scope != Scope::derived;
    if (key.full_name() == "model.init_std") continue;  // the spec has it resolved
    EXPECT_EQ(differing.contains(key.full_name()), is_compared) << key.full_name();
    EXPECT_TRUE(key.scope != Scope::process || differing.empty()) << key.full_name();
  }
}

TEST(RunIdentity, TakesFilesThatMeanTheSameForTheSame) {
  const auto same = [](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return names(identity(settings(a)), identity(settings(b)), Scope::run);
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(same({"run.seed=5"}, {"model.seed=5", "data.seed=5"}), Names{});
  EXPECT_EQ(same({"run.seed=5"}, {"run.seed=6"}), (Names{"model.seed", "data.seed"}));
  const std::string batch = "train.tokens_per_step=4096";
  EXPECT_EQ(same({batch}, {batch, "train.steps=0", "train.tokens=40960"}), Names{});
  EXPECT_EQ(same({batch}, {batch, "train.microbatch=2"}), Names{});
  EXPECT_EQ(same({}, {"outer.every=30"}), Names{}) << "there is one site";
  const std::string sites = "parallel.sites=2";
  EXPECT_EQ(same({sites}, {sites, "outer.lr=0.4", "outer.momentum=0.9", "outer.mix=0.5"}), Names{});
  EXPECT_EQ(same({}, {"train.microbatch=2"}), Names{"train.tokens_per_step"})
      << "one micro-batch was a step";
}

TEST(RunIdentity, ComparesWhatAModelIsAndNotHowItsConfigIsWritten) {
  Json spelt = model_config();
  spelt["rope_theta"] = 10000.0;  // the default
  spelt["transformers_version"] = "4.50";
  const RunIdentity own = identity(settings({}));
  EXPECT_TRUE(identity(settings({}), spelt).differences_from(own.to_json()).empty());

  spelt["rope_theta"] = 500000.0;
  spelt["num_hidden_layers"] = 3;
  EXPECT_EQ(names(own, identity(settings({}), spelt), Scope::weights),
            (std::set<std::string>{"model rope_theta", "model layers"}));
}

TEST(RunIdentity, DoesNotCompareWhatOnlyOneSideRecorded) {
  const RunIdentity own = identity(settings({}));
  Json older = own.to_json();
  older.erase("optim.beta2");
  older["optim.gone"] = "1";
  EXPECT_TRUE(own.differences_from(older).empty());
}

std::string refusal_of_ranks(const std::function<RunIdentity(int)>& of_rank, int ranks) {
  try {
    run_ranks(ranks,
              [&](World& world) { require_same_on_all_ranks(world, of_rank(world.rank())); });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.message();
  }
  return "";
}

TEST(RankAgreement, NamesRanksFactsAndBothValues) {
  const auto of_rank = [](int rank) {
    RunIdentity identity;
    identity.add("program", rank == 2 ? "heddle 0.2" : "heddle 0.1", Scope::launch);
    identity.add("optim.lr", rank == 0 ? "0.1" : rank == 1 ? "0.2" : "0.3", Scope::run);
    return identity;
  };
  EXPECT_EQ(refusal_of_ranks(of_rank, 5),
            "rank 1 has optim.lr = 0.2, rank 0 has 0.1\n"
            "  rank 2 has program = heddle 0.2, rank 0 has heddle 0.1\n"
            "  ranks 2-4 have optim.lr = 0.3, rank 0 has 0.1");
  EXPECT_EQ(refusal_of_ranks([&](int) { return of_rank(3); }, 4), "");
}

TEST(RankAgreement, EndsALongListSomewhere) {
  const auto of_rank = [](int rank) {
    RunIdentity identity;
    for (int i = 0; i < 40; ++i) {
      identity.add(fmt::format("key {}", i), std::to_string(rank), Scope::run);
    }
    return identity;
  };
  const std::string message = refusal_of_ranks(of_rank, 2);
  EXPECT_NE(message.find("and 28 more"), std::string::npos) << message;
}

TEST(RankAgreement, CutsLongValuesToWhereTheyDiffer) {
  const std::string long_one = std::string(300, 'x') + "one" + std::string(300, 'y');
  const auto [a, b] = shown(long_one, std::string(300, 'x') + "two");
  EXPECT_LT(a.size(), 80U);
  EXPECT_NE(a.find("xxxone"), std::string::npos) << a;
  EXPECT_NE(b.find("xxxtwo"), std::string::npos) << b;
}

}  // namespace
}  // namespace heddle
