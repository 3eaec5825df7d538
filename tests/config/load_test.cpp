#include "config/load.h"

#include <gtest/gtest.h>

#include <fstream>

#include "config/error_text.h"

namespace heddle::config {
namespace {

TEST(Load, FillsTypedMembersFromTheFileAndTheRestFromDefaults) {
  const auto run = parse_run(kGoodRun +
                                 "[optim]\nlr = 1\nschedule = \"wsd\"\ndecay_steps = 20\n"
                                 "[run]\nmemory_limit = \"1.5 GiB\"\n",
                             "some/tiny.toml");
  EXPECT_EQ(run.config.model.preset, "llama-15m");
  EXPECT_EQ(run.config.data.seq_len, 256);
  EXPECT_EQ(run.config.optim.lr, 1.0);
  EXPECT_EQ(run.config.optim.schedule, LrSchedule::wsd);
  EXPECT_EQ(run.config.optim.beta2, 0.95);
  EXPECT_EQ(run.config.run.memory_limit, 1610612736);
  EXPECT_EQ(run.config.run.name, "tiny");
  EXPECT_EQ(run.config.folder(), "runs/tiny");
  EXPECT_FALSE(run.config.model.seed.has_value());
}

TEST(Load, ReadsCodecsAndPresets) {
  const Compression compress =
      parse_run(kGoodRun +
                    "[compress]\ngradients = \"int8\"\npreset = \"zhybrid\"\n"
                    "min_bytes = \"1 MiB\"\nerror_feedback = false\n",
                "run.toml")
          .config.compress;
  EXPECT_EQ(
      compress.text(),
      "gradients int8:128, weights zfp:16:4, tensor zfp:16:4, pipeline zfp:16:4, experts zfp:16:4");
  EXPECT_EQ(compress.min_bytes, 1 << 20);
  EXPECT_FALSE(compress.feeds_back());
  EXPECT_TRUE(parse_run(kGoodRun, "run.toml").config.compress.is_none());
}

TEST(Load, RemembersWhereEachValueCameFrom) {
  const auto run = parse_run(kGoodRun, "run.toml", {"train.microbatch=2", "train.steps=7"});
  EXPECT_EQ(run.origins.at("data.seq_len"), "run.toml:5");
  EXPECT_EQ(run.origins.at("train.microbatch"), "--set");
  EXPECT_EQ(run.origins.at("train.steps"), "--set");
  EXPECT_EQ(run.origins.count("optim.lr"), 0U);
}

TEST(Load, SetTakesTomlValuesAndBareText) {
  const auto c = parse_run(kGoodRun, "run.toml",
                           {"optim.lr=1e-3", "run.name=123", "optim.schedule=linear",
                            "data.tokenizer=\"a b.json\"", "checkpoint.best = false",
                            "train.sample_prompt=It was = ", "run.seed=1", "run.seed=2"})
                     .config;
  EXPECT_EQ(c.optim.lr, 1e-3);
  EXPECT_EQ(c.run.name, "123");
  EXPECT_EQ(c.optim.schedule, LrSchedule::linear);
  EXPECT_EQ(c.data.tokenizer, "a b.json");
  EXPECT_FALSE(c.checkpoint.best);
  EXPECT_EQ(c.train.sample_prompt, "It was =");
  EXPECT_EQ(c.run.seed, 2);
}

TEST(Load, SetCanEmptyAKeyOfTheFile) {
  const auto c = parse_run(kGoodRun, "run.toml", {"model.preset=", "model.path=folder"}).config;
  EXPECT_TRUE(c.model.preset.empty());
  EXPECT_EQ(c.model.path, "folder");
}

TEST(Load, ReadsMixtures) {
  const auto c = parse_run(
                     "[model]\npreset=\"llama-15m\"\n[train]\ntokens = 5000\n[data]\nseq_len=100\n"
                     "[[data.sources]]\npath = \"web.tokens\"\nweight = 3\n"
                     "[[data.sources]]\npath = \"books.tokens\"\nname = \"books\"\n",
                     "run.toml")
                     .config;
  ASSERT_EQ(c.data.sources.size(), 2U);
  EXPECT_EQ(c.data.sources[0], (DataSource{"web.tokens", 3.0, "web.tokens"}));
  EXPECT_EQ(c.data.sources[1], (DataSource{"books.tokens", 1.0, "books"}));
  EXPECT_EQ(c.total_steps(), 50);
}

TEST(Load, DerivesAccumulationAndSteps) {
  const auto c = parse_run(kGoodRun, "run.toml",
                           {"train.steps=0", "train.tokens=10000", "train.tokens_per_step=4096",
                            "train.microbatch=4", "data.seed=9"})
                     .config;
  EXPECT_EQ(c.accumulation(), 4);
  EXPECT_EQ(c.total_steps(), 3);
  EXPECT_EQ(c.data_seed(), 9);
  EXPECT_EQ(c.init_seed(), c.run.seed);
}

TEST(LoadErrors, NameTheKeyOfOursForAForeignName) {
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\n  tensor = 2\n"),
            "run.toml:9:3: unknown key parallel.tensor; did you mean parallel.tp?");
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\n\"pipeline-model-parallel-size\" = 2\n"),
            "run.toml:9:1: unknown key parallel.pipeline-model-parallel-size; did you mean "
            "parallel.pp?");
  EXPECT_EQ(error_text(kGoodRun + "max_grad_norm = 2\n"),
            "run.toml:8:1: unknown key train.max_grad_norm; did you mean optim.clip?");
  EXPECT_EQ(
      error_text(kGoodRun + "gradient_accumulation_steps = 2\n"),
      "run.toml:8:1: unknown key train.gradient_accumulation_steps; accumulation is computed: "
      "set train.tokens_per_step and train.microbatch");
}

TEST(LoadErrors, NameTheNearestKey) {
  EXPECT_EQ(error_text(kGoodRun + "microbach = 2\n"),
            "run.toml:8:1: unknown key train.microbach; did you mean train.microbatch?");
  EXPECT_EQ(error_text(kGoodRun + "lr = 2\n"),
            "run.toml:8:1: unknown key train.lr; did you mean optim.lr?");
  EXPECT_EQ(error_text(kGoodRun + "completely_different = 2\n"),
            "run.toml:8:1: unknown key train.completely_different");
  EXPECT_EQ(error_text(kGoodRun + "q = 2\n"), "run.toml:8:1: unknown key train.q");
}

TEST(LoadErrors, NameTheNearestSection) {
  EXPECT_EQ(error_text(kGoodRun + "[optimizer]\nlr = 2\n"),
            "run.toml:8:2: unknown section optimizer; did you mean [optim]?");
  EXPECT_EQ(error_text(kGoodRun + "[checkpont]\n"),
            "run.toml:8:2: unknown section checkpont; did you mean [checkpoint]?");
  EXPECT_EQ(error_text(kGoodRun + "[zero_optimization]\nstage = 3\n"),
            "run.toml:8:2: unknown section zero_optimization; did you mean parallel.zero?");
  EXPECT_EQ(error_text("tp = 2\n" + kGoodRun),
            "run.toml:1:1: key tp outside of any section; did you mean parallel.tp?");
  EXPECT_EQ(error_text("optim = 2\n" + kGoodRun),
            "run.toml:1:1: optim is a section: write [optim] and its keys below it");
}

TEST(LoadErrors, SayWhichTypeIsWanted) {
  EXPECT_EQ(error_text(kGoodRun + "microbatch = 2e0\n"),
            "run.toml:8:1: train.microbatch must be an integer, not number 2; write 2");
  EXPECT_EQ(error_text(kGoodRun + "microbatch = \"two\"\n"),
            "run.toml:8:1: train.microbatch must be an integer, not text \"two\"");
  EXPECT_EQ(
      error_text(kGoodRun + "[run]\nname = 1979-05-27\nmemory_limit = \"3 apples\"\n"),
      "run.toml:9:1: run.name must be text in quotes, not a date or time\n"
      "run.toml:10:1: run.memory_limit must be a number of bytes such as 1000000 or \"3 GiB\", "
      "not text \"3 apples\"");
  EXPECT_EQ(error_text(kGoodRun + "[checkpoint]\nbest = 1\nkeep = [1]\n"),
            "run.toml:9:1: checkpoint.best must be true or false, not integer 1\n"
            "run.toml:10:1: checkpoint.keep must be an integer, not a list");
}

TEST(LoadErrors, SayTheRangeAndTheChoices) {
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\nzero = 4\n"),
            "run.toml:9:1: parallel.zero = 4 is out of range; it must be from 0 to 3");
  EXPECT_EQ(error_text(kGoodRun + "eval_every = -1\n"),
            "run.toml:8:1: train.eval_every = -1 is out of range; it must be 0 or more");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nlr = nan\nclip = inf\n"),
            "run.toml:9:1: optim.lr = nan is out of range; it must be from 0 to 100\n"
            "run.toml:10:1: optim.clip = inf is out of range; it must be at most 1e+30");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nschedule = \"cosin\"\n"),
            "run.toml:9:1: optim.schedule = \"cosin\" is not one of constant, linear, cosine, wsd; "
            "did you mean \"cosine\"?");
  EXPECT_EQ(error_text(kGoodRun + "[run]\ndir = \"a\\u0000b\"\n"),
            "run.toml:9:1: run.dir = \"a\\u0000b\" is not a path: it has a control character");
}

TEST(LoadErrors, OfMixturesNameTheTable) {
  const std::string run = "[model]\npreset=\"llama-15m\"\n[train]\nsteps = 1\n";
  EXPECT_EQ(
      error_text(run + "[[data.sources]]\nweight = 1\n"
                       "[[data.sources]]\npath = \"a\"\nwieght = 1\nweight = -1\nname = 3\n"),
      "run.toml:5:1: a data source without path; set path to a token file, .txt or .jsonl\n"
      "run.toml:9:1: unknown key data.sources.wieght; did you mean weight?\n"
      "run.toml:10:1: weight of a data source must be a number from 0 to 1e9, not integer -1\n"
      "run.toml:11:1: name of a data source must be text in quotes, not integer 3");
  EXPECT_EQ(error_text(run + "[data]\nsources = [\"a\"]\n"),
            "run.toml:6:12: data.sources must be tables, each under its own [[data.sources]], not "
            "text \"a\"");
  EXPECT_EQ(error_text(run + "[[data.sources]]\npath = \"a\"\nweight = 0\n"),
            "run.toml:5:8: all weights of data.sources are 0; give one more than 0");
  EXPECT_EQ(error_text(run + "[[data.sources]]\npath = \"a\"\n[[data.sources]]\npath = \"a\"\n"),
            "run.toml:5:8: two data.sources have the name \"a\"; give each its own, for reports");
}

TEST(LoadErrors, OfConflictsSayBothKeysAndTheRemedy) {
  EXPECT_EQ(error_text(kGoodRun + "tokens_per_step = 1000\nmicrobatch = 2\n"),
            "run.toml:8:1: train.tokens_per_step = 1000 is not a whole number of micro-batches of "
            "512 tokens (train.microbatch 2 x data.seq_len 256); use 512 (1 accumulated) or 1024 "
            "(2)");
  EXPECT_EQ(error_text(kGoodRun + "tokens_per_step = 100\n"),
            "run.toml:8:1: train.tokens_per_step = 100 is not a whole number of micro-batches of "
            "256 tokens (train.microbatch 1 x data.seq_len 256); use 256 (1 accumulated)");
  EXPECT_EQ(error_text(kGoodRun + "tokens = 5\n"),
            "run.toml:8:1: train.steps = 100 and train.tokens = 5 are both given; keep one");
  EXPECT_EQ(
      error_text(kGoodRun, {"model.path=a", "model.vocab_size=5"}),
      "--set model.path=a: model.preset and model.path are given; keep one\n"
      "--set model.vocab_size=5: model.vocab_size cannot change the vocabulary of the weights "
      "in model.path; remove it, or use model.config for random weights");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nwarmup_steps = 101\nmin_lr = 1\n"),
            "run.toml:9:1: optim.warmup_steps = 101 is longer than the run of 100 steps\n"
            "run.toml:10:1: optim.min_lr = 1 is above optim.lr = 0.0003");
  EXPECT_EQ(
      error_text(kGoodRun + "[optim]\nschedule = \"wsd\"\n"),
      "run.toml:9:1: optim.schedule = \"wsd\" needs optim.decay_steps, the length of the final "
      "decay");
  EXPECT_EQ(
      error_text(kGoodRun + "[optim]\ndecay_steps = 5\n"),
      "run.toml:9:1: optim.decay_steps is only used by optim.schedule = \"wsd\"; remove it or "
      "change the schedule");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nmomentum = 0.9\nmuon_scale = \"original\"\n"),
            "run.toml:9:1: optim.momentum is only used by sgd and muon; remove it or change "
            "optim.name\n"
            "run.toml:10:1: optim.muon_scale is only used by muon; remove it or change optim.name");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nname = \"sgd\"\nnesterov = true\n"),
            "run.toml:10:1: optim.nesterov looks ahead along the momentum, and sgd has none; set "
            "optim.momentum (0.9 is usual), or nesterov = false");
  EXPECT_EQ(
      error_text(kGoodRun + "[optim]\nname = \"sgd\"\nmomentum = 0.9\nnesterov = true\n"
                            "dampening = 0.5\n"),
      "run.toml:12:1: optim.nesterov and optim.dampening = 0.5 exclude each other; set one of "
      "them");
  EXPECT_EQ(
      error_text(kGoodRun + "[optim]\nname = \"muon\"\nlr = 0\nmuon_lr = 0.02\n"),
      "run.toml:11:1: optim.muon_lr = 0.02 follows optim.lr, which is 0; set optim.lr above 0");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nname = \"adagrad\"\n"),
            "run.toml:9:1: optim.name = \"adagrad\" is not one of adamw, sgd, muon, onebit-adam");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nfreeze_step = 10\n"),
            "run.toml:9:1: optim.freeze_step is only used by onebit-adam; remove it or change "
            "optim.name");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nname = \"onebit-adam\"\nwarmup_steps = 6\n"
                                  "freeze_step = 5\n"),
            "run.toml:11:1: optim.freeze_step = 5 lies inside the learning rate's warm-up of 6 "
            "steps, when the second moment is not yet that of training; use 6 or more, or a "
            "shorter optim.warmup_steps");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nname = \"onebit-adam\"\nfreeze_ratio = 0.9\n"
                                  "freeze_step = 5\n"),
            "run.toml:10:1: optim.freeze_ratio finds the step that optim.freeze_step names; keep "
            "one");
  EXPECT_EQ(error_text(kGoodRun + "[optim]\nname = \"onebit-adam\"\n[parallel]\nzero = 3\n"),
            "run.toml:11:1: parallel.zero = 3 divides gradients, of which optim.name = "
            "\"onebit-adam\" needs all on every rank; use parallel.zero = 0 or 1");
  EXPECT_EQ(error_text(""),
            "run.toml: no model; set one of model.preset, model.path and model.config\n"
            "run.toml: no training data; set data.train or [[data.sources]]\n"
            "run.toml: no length; set train.steps or train.tokens");
}

TEST(LoadErrors, RefuseAMeshThatIsNotTheRanksOfTheRun) {
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\ntp = 2\n"),
            "run.toml:9:1: parallel.dp 1 x tp 2 x pp 1 makes 2 ranks, but 1 is started; start 2 "
            "(--ranks 2 or the launcher), or change one of them");
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\ndp = 2\npp = 3\n"),
            "run.toml:9:1: parallel.dp 2 x tp 1 x pp 3 makes 6 ranks, but 1 is started; start 6 "
            "(--ranks 6 or the launcher), or change one of them");
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\ncp = 2\n"),
            "run.toml:9:1: parallel.dp 1 x cp 2 x tp 1 x pp 1 makes 2 ranks, but 1 is started; "
            "start 2 (--ranks 2 or the launcher), or change one of them");
}

TEST(LoadErrors, RefuseMoreRanksOfCpThanAMicroBatchHasTokens) {
  const std::string run = kGoodRun + "[parallel]\ncp = 8\n";
  const std::vector<std::string> few = {"train.microbatch=3", "data.seq_len=2"};
  EXPECT_EQ(error_text(run, few, 8),
            "run.toml:9:1: parallel.cp = 8 ranks cannot share micro-batches of 6 tokens "
            "(train.microbatch 3 x data.seq_len 2), since some would have none; use cp = 6 or "
            "less, or longer sequences");
  EXPECT_EQ(
      parse_run(run, "run.toml", {"train.microbatch=4", "data.seq_len=2"}, 8).config.parallel.cp,
      8);
}

TEST(LoadErrors, NameTheMethodsAndOrdersOfCp) {
  EXPECT_EQ(error_text(kGoodRun + "[parallel]\ncontext = \"rings\"\ncontext_order = \"snake\"\n"
                                  "context_heads = -1\n"),
            "run.toml:9:1: parallel.context = \"rings\" is not one of auto, ring, gather, ulysses, "
            "usp, lightseq, tokenring; did you mean \"ring\"?\n"
            "run.toml:10:1: parallel.context_order = \"snake\" is not one of auto, contiguous, "
            "zigzag, striped\n"
            "run.toml:11:1: parallel.context_heads = -1 is out of range; it must be from 0 to "
            "1048576");
}

TEST(Load, TakesForDpWhatTheRanksLeave) {
  const std::string run = kGoodRun + "[parallel]\ntp = 2\npp = 3\n";
  EXPECT_EQ(parse_run(run, "run.toml", {}, 24).config.parallel.dp, 4);
  EXPECT_EQ(parse_run(run, "run.toml", {"parallel.dp=2"}, 12).config.parallel.dp, 2);
  EXPECT_EQ(parse_run(kGoodRun, "run.toml").config.parallel.dp, 1);
}

TEST(LoadErrors, RefuseAPipelineThatIsNotThere) {
  EXPECT_EQ(
      error_text(kGoodRun + "[parallel]\ndp = 1\nchunks = 2\nvocabulary = \"pipeline\"\n"),
      "run.toml:10:1: parallel.chunks = 2 needs a pipeline; set parallel.pp above 1, or chunks "
      "= 1\n"
      "run.toml:11:1: parallel.vocabulary = \"pipeline\" needs a pipeline; set parallel.pp "
      "above 1, or vocabulary = \"tensor\"");
}

TEST(LoadErrors, ConflictsThatMayFollowFromAFaultAreNotShown) {
  EXPECT_EQ(
      error_text("[model]\npreset = \"lama-15m\"\n[data]\ntrain = \"a\"\n"),
      "run.toml:2:1: model.preset = \"lama-15m\" is not one of gpt2-124m, llama-15m, "
      "llama-110m, tinyllama-1.1b, llama3.2-1b, llama3-8b, gpt3-175b; did you mean \"llama-15m\"?\n"
      "run.toml: no length; set train.steps or train.tokens");
}

TEST(LoadErrors, OfOverridesQuoteTheOverride) {
  EXPECT_EQ(error_text(kGoodRun,
                       {"foo", "optim.lrr=3", "optim.clip=abc", "optm.lr=3", "optim.lr=1\nx=2"}),
            "--set foo: not of the form section.key=value\n"
            "--set optim.lrr=3: unknown key optim.lrr; did you mean optim.lr?\n"
            "--set optim.clip=abc: optim.clip must be a number, not text \"abc\"\n"
            "--set optm.lr=3: unknown section optm; did you mean [optim]?\n"
            "--set optim.lr=1\nx=2: optim.lr must be a number, not text \"1\\nx=2\"");
  EXPECT_EQ(error_text(kGoodRun, {"run.name=\xff"}), "--set run.name=\xff: not valid UTF-8");
}

TEST(LoadErrors, OfMalformedTomlHaveThePlace) {
  EXPECT_EQ(error_text("[model\n"), "run.toml:1:7: not valid TOML: expected ']', saw '\\n'");
  EXPECT_EQ(error_text("[model]\npreset = \"a\"\npreset = \"b\"\n"),
            "run.toml:3:10: not valid TOML: cannot redefine existing string 'preset'");
  EXPECT_EQ(error_text("[model]\npreset = llama-15m\n"),
            "run.toml:2:10: not valid TOML: no value has this form; text needs quotes");
  EXPECT_EQ(error_text("[model]\npreset = \"\xff\xfe\"\n"),
            "run.toml:2:10: not valid TOML: Encountered invalid utf-8 sequence");
  EXPECT_EQ(error_text("[model]\n\u0498 = 1\n").rfind("run.toml:2:1: not valid TOML: ", 0), 0U);
  EXPECT_EQ(error_text("[model]\n\n[[.a]]\n[data]\n"), "run.toml:3:1: not valid TOML");
}

TEST(LoadErrors, HostileNestingIsRefusedNotFollowed) {
  EXPECT_NE(error_text("a = " + std::string(100000, '[')), "");
  std::string dotted = "a";
  for (int i = 0; i < 100000; ++i) dotted += ".a";
  EXPECT_EQ(error_text(dotted + " = 1"),
            "run.toml:1:1: a line with more than 250 dots is not one of a file of settings");
  EXPECT_EQ(error_text(std::string(2 << 20, '\n')),
            "run.toml: 2.0 MiB is too large for a file of settings");
  // The deepest that the two limits let through.
  std::string deepest;
  for (int i = 0; i < 15; ++i) deepest += "[{" + dotted.substr(0, 499) + "=\n";
  EXPECT_NE(error_text("x=" + deepest + "1"), "");
}

TEST(LoadErrors, OfAMissingFileAreUsageErrors) {
  try {
    load_run_file("no/such/run.toml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_NE(e.message().find("no/such/run.toml"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace heddle::config
