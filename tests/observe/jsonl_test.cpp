#include "observe/sinks/jsonl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/file_system.h"
#include "observe/history.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

StepMetrics step(std::int64_t number) {
  StepMetrics m;
  m.step = number;
  m.tokens = number * 4096;
  m.loss = 3.412;
  m.grad_norm = 0.84;
  m.lr = 3e-4;
  m.step_seconds = 0.412;
  m.tokens_per_second = 318000;
  m.mfu = 0.41;
  return m;
}

TEST(JsonlSink, WritesTheKeysOfTheContractInOrder) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  JsonlSink sink(path, std::nullopt);
  sink.on_step(step(120));
  sink.on_eval({.step = 120, .tokens = 491520, .loss = 1.5, .perplexity = 4.5});
  // Read before close(): a line is there as soon as the call returns.
  EXPECT_EQ(read_text_file(path),
            "{\"step\":120,\"tokens\":491520,\"loss\":3.412,\"grad_norm\":0.84,\"lr\":0.0003,"
            "\"step_seconds\":0.412,\"tokens_per_second\":318000,\"mfu\":0.41,"
            "\"data_wait_seconds\":0}\n"
            "{\"step\":120,\"eval_loss\":1.5,\"eval_perplexity\":4.5}\n");
  sink.close();
}

TEST(JsonlSink, WritesTheLossOfEachSourceByItsName) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  JsonlSink sink(path, std::nullopt);
  sink.on_eval({.step = 2,
                .loss = 1.5,
                .perplexity = 4.5,
                .sources = {{"web \"text\"", 1.25}, {"code", std::nan("")}}});
  sink.close();
  EXPECT_EQ(read_text_file(path),
            "{\"step\":2,\"eval_loss\":1.5,\"eval_perplexity\":4.5,"
            "\"eval_sources\":{\"web \\\"text\\\"\":1.25,\"code\":null}}\n");
  const History history = read_history(path);
  EXPECT_EQ(history.eval_sources.at("web \"text\"").front().value, 1.25);
  EXPECT_TRUE(std::isnan(history.eval_sources.at("code").front().value));
}

TEST(JsonlSink, WritesNullForWhatIsUnknownOrNotFinite) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  JsonlSink sink(path, std::nullopt);
  StepMetrics m = step(1);
  m.loss = std::nan("");
  m.mfu.reset();
  sink.on_step(m);
  const std::string text = read_text_file(path);
  EXPECT_NE(text.find("\"loss\":null"), std::string::npos);
  EXPECT_NE(text.find("\"mfu\":null"), std::string::npos);
  EXPECT_TRUE(std::isnan(read_history(path).loss.at(0).value));
}

TEST(JsonlSink, ContinuesWithoutDuplicatesAfterResumingAtAnOlderStep) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    JsonlSink sink(path, std::nullopt);
    for (int i = 1; i <= 7; ++i) sink.on_step(step(i));
    sink.on_eval({.step = 7, .tokens = 0, .loss = 1, .perplexity = 2});
  }
  std::ofstream(path, std::ios::app) << "{\"step\":8,\"tokens\":32";  // torn by a kill
  JsonlSink sink(path, 4);
  for (int i = 5; i <= 6; ++i) sink.on_step(step(i));
  const History history = read_history(path);
  ASSERT_EQ(history.loss.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(history.loss[static_cast<std::size_t>(i)].step, i + 1);
  EXPECT_TRUE(history.eval_loss.empty());
}

TEST(JsonlSink, ResumingWithoutAnOldFileStartsOne) {
  const TemporaryFolder folder;
  JsonlSink sink(folder.path() / "metrics.jsonl", 10);
  sink.on_step(step(11));
  EXPECT_EQ(read_history(folder.path() / "metrics.jsonl").loss.size(), 1u);
}

TEST(JsonlSink, AFreshRunReplacesTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << "old\n";
  JsonlSink sink(path, std::nullopt);
  EXPECT_EQ(read_text_file(path), "");
}

TEST(JsonlSink, NamesTheFileItCannotOpen) {
  try {
    JsonlSink sink("/nonexistent-folder/metrics.jsonl", std::nullopt);
    FAIL() << "opened";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::resources);
    EXPECT_NE(e.message().find("/nonexistent-folder/metrics.jsonl"), std::string::npos);
  }
}

TEST(JsonlSink, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  JsonlSink sink("/dev/full", std::nullopt);
  EXPECT_THROW(sink.on_step(step(1)), Error);
}

}  // namespace
}  // namespace heddle::observe
