#include <gtest/gtest.h>

#include "train/tiny_run.h"

namespace heddle {
namespace {

const std::vector<std::string> kMesh = {"parallel.dp=2", "parallel.pp=2", "compress.min_bytes=0"};

std::vector<std::string> with(std::vector<std::string> settings,
                              const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST(CompressedRun, TellsPayloadAndWireBytesPredictedAndCounted) {
  const TinyRun run;
  const Outcome outcome = run.train(
      with(kMesh, {"compress.gradients=int8", "compress.weights=bf16", "compress.pipeline=fp8"}),
      {"--ranks", "4"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("compressed: gradients int8:128, weights bf16, pipeline fp8:128"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("a step sent "), std::string::npos) << outcome.err;
  const Json report = parse_json(read_text_file(run.run_folder() / "report.json"), "report.json");
  int coded = 0;
  for (const auto& [axis, operations] : report["communication"].items()) {
    for (const auto& [operation, row] : operations.items()) {
      EXPECT_EQ(row["counted"], row["predicted"]) << axis << " " << operation;
      if (row["counted"]["wire_bytes"] < row["counted"]["payload_bytes"]) ++coded;
    }
  }
  EXPECT_EQ(coded, 4) << "all_to_all and all_gather over dp, send and recv over pp";
  EXPECT_EQ(report["curves"]["residual"]["value"].size(), 10u);
  for (const Json& value : report["curves"]["residual"]["value"]) {
    EXPECT_GT(value.get<double>(), 0.0);
    EXPECT_LT(value.get<double>(), 0.1);
  }
}

TEST(CompressedRun, ResumesOnAnotherMeshAndWithAnotherCodecAndSaysSo) {
  const TinyRun run;
  const auto train = [&](const std::string& ranks, const std::vector<std::string>& more) {
    return run.train(with({"compress.min_bytes=0", "optim.schedule=constant"}, more),
                     {"--ranks", ranks});
  };
  ASSERT_EQ(train("2", {"train.steps=4", "compress.gradients=int4"}).status, 0);
  const Outcome other = train("1", {"train.steps=5", "compress.gradients=int4"});
  EXPECT_NE(other.err.find("is left behind: this run keeps none of it"), std::string::npos)
      << other.err;
  ASSERT_EQ(train("2", {"train.steps=6", "compress.gradients=int4"}).status, 0);
  const Outcome changed = train("2", {"train.steps=7", "compress.gradients=int8"});
  EXPECT_EQ(changed.status, 0) << changed.err;
  EXPECT_NE(changed.err.find(
                "compress.gradients was int4:128 and is int8:128: residuals begin with zeros"),
            std::string::npos)
      << changed.err;
}

TEST(CompressedRun, IsRefusedInTheRunFilesWords) {
  const TinyRun run;
  const Outcome outcome = run.train({"compress.gradients=lossless", "compress.tensor=int9"});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("compress.gradients = \"lossless\": sums travel as bytes"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("compress.tensor = \"int9\": there is no codec \"int9\""),
            std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace heddle
