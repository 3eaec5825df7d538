#include "config/schema.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "config/field.h"

namespace heddle::config {
namespace {

TEST(Schema, SectionsAreThoseOfTheContract) {
  std::vector<std::string> names;
  for (const auto& section : sections()) names.push_back(section.name);
  EXPECT_EQ(names, (std::vector<std::string>{"model", "data", "train", "lora", "optim", "parallel",
                                             "outer", "compress", "checkpoint", "recover",
                                             "observe", "run"}));
}

TEST(Schema, EveryKeyIsUniqueDocumentedAndInASection) {
  std::set<std::string> seen;
  for (const auto& key : keys()) {
    EXPECT_TRUE(seen.insert(key.full_name()).second) << key.full_name();
    EXPECT_TRUE(is_section(key.section)) << key.full_name();
    EXPECT_FALSE(key.help.empty()) << key.full_name();
    EXPECT_LE(key.help.size(), 95U) << key.full_name();
    EXPECT_NE(key.help.back(), '.') << key.full_name();
    EXPECT_EQ(find_key(key.full_name()), &key);
  }
}

/// What resuming and ranks compare is decided here, once for every key. A new key with a scope of
/// its own is added to one of the lists after thinking about: may ranks differ in it without
/// waiting for each other for ever or computing different things? Would a run that is resumed with
/// another value be another run?
TEST(Schema, EveryKeyIsTheSameOverWhatItHasToBe) {
  const std::set<std::string> process = {"data.prefetch",
                                         "observe.console_every",
                                         "observe.tensorboard",
                                         "observe.report",
                                         "observe.system",
                                         "observe.trace_limit",
                                         "run.name",
                                         "run.dir",
                                         "run.threads",
                                         "run.memory_limit",
                                         "run.timeout"};
  const std::set<std::string> derived = {
      "model.preset",      "model.path",   "model.config",        "model.vocab_size",
      "data.train",        "data.sources", "data.eval",           "data.tokenizer",
      "train.tokens",      "data.kind",    "data.messages_field", "data.prompt_field",
      "data.answer_field", "lora.path"};
  const std::set<std::string> weights = {"lora.rank", "lora.alpha", "lora.rslora", "lora.targets"};
  const std::set<std::string> run = {"model.seed",
                                     "model.init_std",
                                     "model.scale_residual_init",
                                     "model.ignore_dropout",
                                     "model.router_aux_loss",
                                     "model.router_z_loss",
                                     "model.router_balance",
                                     "model.router_bias_rate",
                                     "model.router_noise",
                                     "model.router_noise_scale",
                                     "model.capacity_factor",
                                     "model.capacity_rule",
                                     "model.capacity_least",
                                     "model.capacity_multiple",
                                     "model.drop",
                                     "model.renorm_after_drop",
                                     "data.holdout",
                                     "data.seq_len",
                                     "data.documents",
                                     "data.seed",
                                     "train.steps",
                                     "train.tokens_per_step",
                                     "lora.dropout",
                                     "optim.name",
                                     "optim.lr",
                                     "optim.min_lr",
                                     "optim.schedule",
                                     "optim.warmup_steps",
                                     "optim.decay_steps",
                                     "optim.beta1",
                                     "optim.beta2",
                                     "optim.eps",
                                     "optim.weight_decay",
                                     "optim.clip",
                                     "optim.momentum",
                                     "optim.nesterov",
                                     "optim.dampening",
                                     "optim.muon_lr",
                                     "optim.muon_scale",
                                     "optim.newton_schulz_steps",
                                     "optim.freeze_step",
                                     "optim.freeze_ratio",
                                     "optim.freeze_mask",
                                     "parallel.sites",
                                     "parallel.skip",
                                     "parallel.routes",
                                     "outer.every",
                                     "outer.fragments",
                                     "outer.delay",
                                     "outer.mix",
                                     "outer.codec",
                                     "outer.lr",
                                     "outer.momentum",
                                     "outer.feedback",
                                     "data.stream",
                                     "train.freeze"};
  for (const auto& key : keys()) {
    const std::string name = key.full_name();
    const Scope expected = process.contains(name)   ? Scope::process
                           : derived.contains(name) ? Scope::derived
                           : weights.contains(name) ? Scope::weights
                           : run.contains(name)     ? Scope::run
                                                    : Scope::launch;
    EXPECT_EQ(key.scope, expected) << name;
  }
}

TEST(Schema, EveryDefaultIsAllowed) {
  for (const auto& key : keys()) {
    EXPECT_EQ(problem_with(key, key.default_value()), "") << key.full_name();
  }
}

TEST(Schema, RefusesWhatAMemberCannotHold) {
  const Key key{.section = "parallel",
                .name = "dp",
                .field = field(&RunConfig::parallel, &ParallelRequest::dp),
                .scope = Scope::launch,
                .help = "no bounds of its own"};
  EXPECT_EQ(problem_with(key, std::int64_t{2147483647}), "");
  EXPECT_EQ(problem_with(key, std::int64_t{2147483648}),
            "parallel.dp = 2147483648 is out of range; it must be at most 2147483647");
  EXPECT_EQ(problem_with(key, std::int64_t{-2147483649}),
            "parallel.dp = -2147483649 is out of range; it must be -2147483648 or more");
  RunConfig config;
  key.field.set(config, std::int64_t{12});
  EXPECT_EQ(config.parallel.dp, 12);
  EXPECT_EQ(key.field.get(config), Value(std::int64_t{12}));
}

TEST(Schema, EveryChoiceSetsAndGetsItsOwnName) {
  for (const auto& key : keys()) {
    for (const auto& name : key.field.choices) {
      RunConfig config;
      key.field.set(config, name);
      EXPECT_EQ(key.field.get(config), Value(name)) << key.full_name();
    }
  }
}

TEST(Schema, ChoicesAreInTheOrderOfTheEnumerators) {
  RunConfig config;
  const auto set = [&](const char* key, const char* name) {
    find_key(key)->field.set(config, std::string(name));
  };
  set("parallel.schedule", "v-half");
  EXPECT_EQ(config.parallel.schedule, Pipeline::v_half);
  set("parallel.schedule", "1f1b");
  EXPECT_EQ(config.parallel.schedule, Pipeline::one_f_one_b);
  set("parallel.vocabulary", "pipeline");
  EXPECT_EQ(config.parallel.vocabulary, VocabularyPlacement::pipeline);
  set("optim.schedule", "wsd");
  EXPECT_EQ(config.optim.schedule, LrSchedule::wsd);
  set("run.dtype", "bf16");
  EXPECT_EQ(config.run.dtype, FloatType::bf16);
  set("run.device", "cuda");
  EXPECT_EQ(config.run.device, DeviceName::cuda);
  set("data.documents", "ignore");
  EXPECT_EQ(config.data.documents, Documents::ignore);
  set("train.recompute", "block");
  EXPECT_EQ(config.train.recompute, Recompute::block);
  set("train.nonfinite", "stop");
  EXPECT_EQ(config.train.nonfinite, OnNonfinite::stop);
}

TEST(Schema, ForeignNamesLeadToOneKeyAndAreNoKeysThemselves) {
  std::map<std::string, std::string> owner;
  for (const auto& key : keys()) {
    for (const auto& name : key.foreign) {
      const auto [at, is_new] = owner.emplace(name, key.full_name());
      EXPECT_TRUE(is_new) << name << " is claimed by " << at->second << " and " << key.full_name();
      EXPECT_EQ(find_key(key.section + "." + name), nullptr) << name;
    }
  }
}

TEST(Schema, KnowsTheNamesPeopleBring) {
  const std::pair<const char*, const char*> known[] = {
      {"tensor-model-parallel-size", "parallel.tp"},
      {"--tensor-model-parallel-size", "parallel.tp"},
      {"sequence-parallel", "parallel.sequence"},
      {"pipeline_parallel_degree", "parallel.pp"},
      {"context-parallel-size", "parallel.cp"},
      {"ep_size", "parallel.ep"},
      {"use-distributed-optimizer", "parallel.zero"},
      {"data_parallel_shard_degree", "parallel.zero"},
      {"fsdp", "parallel.zero"},
      {"num-layers-per-virtual-pipeline-stage", "parallel.chunks"},
      {"pipeline_parallel_schedule", "parallel.schedule"},
      {"global-batch-size", "train.tokens_per_step"},
      {"train_micro_batch_size_per_gpu", "train.microbatch"},
      {"per_device_train_batch_size", "train.microbatch"},
      {"train-iters", "train.steps"},
      {"max_steps", "train.steps"},
      {"clip-grad", "optim.clip"},
      {"max_grad_norm", "optim.clip"},
      {"recompute-granularity", "train.recompute"},
      {"gradient_checkpointing", "train.recompute"},
      {"save-interval", "checkpoint.every"},
      {"save_total_limit", "checkpoint.keep"},
  };
  for (const auto& [theirs, ours] : known) {
    EXPECT_EQ(suggestion_for_key("x", theirs), std::string("; did you mean ") + ours + "?");
  }
}

TEST(Schema, ReadsByteCounts) {
  EXPECT_EQ(parse_bytes("3 GiB"), std::int64_t{3} << 30);
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("2 GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("17"), 17);
  for (const char* bad : {"", "GiB", "-1 GiB", "nan", "inf B", "1e30 GiB", "3 XB", "3 GiB x"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace heddle::config
