#include <gtest/gtest.h>

#include <csignal>

#include "train/text_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

TEST(SampleOrder, IsTheSameInEveryFolderByRelativeAndAbsolutePaths) {
  const TextRun here, there;
  there.write("run.toml", TextRun::run_file(there.path().string() + "/"));
  for (const TextRun* run : {&here, &there}) {
    const Outcome outcome = run->train();
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  ASSERT_EQ(here.losses().size(), 8U);
  EXPECT_EQ(here.losses(), there.losses());
}

TEST(SampleOrder, OfTextIsThatOfTheTokenFileMadeFromIt) {
  const TextRun text, tokens;
  ASSERT_EQ(text.train().status, 0);
  const Outcome made = tokens.run(
      {"tokenize", "text.jsonl", "--tokenizer", "tokenizer.json", "--out", "other-name.tokens"});
  ASSERT_EQ(made.status, 0) << made.err;
  const Outcome outcome = tokens.train({"data.train=other-name.tokens"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(tokens.losses(), text.losses());
}

TEST(SampleOrder, OfARunThatWasMovedGoesOnAsIfItHadNot) {
  const TextRun whole;
  ASSERT_EQ(whole.train().status, 0);
  const TemporaryFolder place;
  TextRun run(place / "first");
  // On a loaded machine the run may end before the signal comes; then once more.
  Outcome killed;
  for (int attempt = 0; attempt < 5 && killed.signal == 0; ++attempt) {
    fs::remove_all(run.path() / "run");
    killed = run.train({}, {.signal = SIGKILL, .signal_at = "step 4: checkpoint durable"});
  }
  ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
  fs::rename(place / "first", place / "second");
  const Outcome resumed = run_heddle({"train", "run.toml"}, {.folder = place / "second"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  ASSERT_NE(resumed.err.find("resuming from"), std::string::npos) << resumed.err;
  fs::rename(place / "second", place / "first");
  EXPECT_EQ(run.losses(), whole.losses());
}

TEST(SampleOrder, KeepsTwoSourcesOfOneNameApart) {
  const TextRun run;
  for (const char* name : {"a", "b"}) {
    const Outcome made =
        run.run({"demo-text", "--bytes", "60000", "--seed", *name == 'a' ? "1" : "2", "--out",
                 fmt::format("{}.jsonl", name)});
    ASSERT_EQ(made.status, 0) << made.err;
    run.write(fmt::format("{}/text.jsonl", name),
              read_text_file(run.at(fmt::format("{}.jsonl", name))));
  }
  std::string text = TextRun::run_file("");
  const std::string train = "train = \"text.jsonl\"\n";
  text.erase(text.find(train), train.size());
  for (const char* name : {"a", "b"}) {
    text += fmt::format("[[data.sources]]\npath = \"{}/text.jsonl\"\n", name);
  }
  run.write("run.toml", text);
  const Outcome outcome = run.train();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(run.run({"tokenize", fmt::format("{}/text.jsonl", name), "--tokenizer",
                       "tokenizer.json", "--out", fmt::format("{}.tokens", name)})
                  .status,
              0);
  }
  EXPECT_EQ(read_text_file(run.at("run/data/source-1.tokens")), read_text_file(run.at("a.tokens")));
  EXPECT_EQ(read_text_file(run.at("run/data/source-2.tokens")), read_text_file(run.at("b.tokens")));
  EXPECT_NE(read_text_file(run.at("a.tokens")), read_text_file(run.at("b.tokens")));
}

}  // namespace
}  // namespace heddle
