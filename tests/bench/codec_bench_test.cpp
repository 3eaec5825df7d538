#include "bench/codec_bench.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codec/registry.h"
#include "model/registry.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

const std::string kReferences = source_dir() + "/tests/reference/models/";

TEST(CodecBench, MeasuresEveryKnownCodec) {
  Stream stream(1);
  const auto gradients = read_gradients(kReferences + "llama/reference.safetensors");
  const auto results = bench_codecs({.values = 20'000, .seconds = 0}, gradients, stream);
  ASSERT_EQ(results.size(), codec::known_codecs().size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const CodecBenchResult& result = results[i];
    SCOPED_TRACE(result.name);
    EXPECT_EQ(result.name, codec::known_codecs()[i].usual);
    for (const CodecQuality& quality : {result.gaussian, result.gradients}) {
      EXPECT_GT(quality.bytes_per_value, 0);
      EXPECT_LT(quality.bytes_per_value, 4);
      EXPECT_LT(quality.relative_error, 1);
      EXPECT_EQ(quality.relative_error == 0, result.name == "lossless");
    }
    for (const double seconds : {result.encode_seconds, result.feedback_seconds,
                                 result.decode_seconds, result.add_seconds, result.copy_seconds}) {
      EXPECT_GT(seconds, 0);
    }
  }
}

TEST(CodecBench, ComparesBytesReadAndWrittenWithThoseOfACopy) {
  CodecBenchResult result;
  result.values = 1000;
  result.gaussian.bytes_per_value = 1;
  result.encode_seconds = 2;
  result.decode_seconds = 1;
  result.copy_seconds = 1;
  EXPECT_DOUBLE_EQ(result.rate(result.encode_seconds), 2000);
  EXPECT_DOUBLE_EQ(result.encode_fraction(), 5.0 / 16);
  EXPECT_DOUBLE_EQ(result.decode_fraction(), 5.0 / 8);
}

TEST(CodecBench, ReadsGradientsOrElseAllTensors) {
  const auto gradients = read_gradients(kReferences + "llama/reference.safetensors");
  const auto weights = read_gradients(kReferences + "llama/model.safetensors");
  EXPECT_EQ(gradients.size(), weights.size()) << "one for each parameter, and nothing else";
  for (const Tensor& t : gradients) EXPECT_EQ(t.dims(), 1);
}

TEST(CodecBench, MakesAGradientForEveryParameter) {
  Stream stream(1);
  const auto gradients = made_gradients(read_model_spec(kReferences + "llama/config.json"), stream);
  const auto weights = read_gradients(kReferences + "llama/model.safetensors");
  std::int64_t made = 0, parameters = 0;
  for (const Tensor& t : weights) parameters += t.count();
  for (const Tensor& t : gradients) {
    made += t.count();
    double sum = 0;
    for (const float value : t.host<float>()) sum += std::abs(static_cast<double>(value));
    EXPECT_TRUE(std::isfinite(sum) && sum > 0);
  }
  EXPECT_EQ(made, parameters);
}

}  // namespace
}  // namespace heddle
