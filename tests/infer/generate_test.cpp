#include "infer/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/hf_folder.h"
#include "engine/weights.h"
#include "model/registry.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

/// A reference model with its published weights.
class Generator {
 public:
  explicit Generator(const std::string& name)
      : folder_(source_dir() + "/tests/reference/models/" + name),
        spec_(read_model_spec(folder_ + "/config.json")),
        model_(spec_, {.positions = spec_.max_positions}, ParamStore::Purpose::inference, memory_) {
    load_weights(HfFolder(folder_), spec_, model_.store(), stream_);
  }

  std::vector<std::int32_t> operator()(const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options,
                                       const OnToken& on_token = {}) {
    return generate(model_, prompt, options, on_token, stream_, memory_);
  }

  std::vector<std::int32_t> prompt(std::size_t length, std::uint64_t seed) const {
    std::vector<std::int32_t> ids(length);
    for (std::size_t i = 0; i < length; ++i) {
      ids[i] =
          static_cast<std::int32_t>(random_u64(seed, i) % static_cast<std::uint64_t>(spec_.vocab));
    }
    return ids;
  }

  const ModelSpec& spec() const { return spec_; }

 private:
  Memory memory_;
  Stream stream_{1};
  std::string folder_;
  ModelSpec spec_;
  Model model_;
};

class GenerateWith : public testing::TestWithParam<const char*> {};

TEST_P(GenerateWith, TheCacheIsTokenIdenticalToRecomputation) {
  Generator generator(GetParam());
  for (std::uint64_t i = 0; i < 25; ++i) {
    const auto prompt = generator.prompt(1 + i % 20, 50 + i);
    GenerateOptions options{.max_tokens = 12};
    if (i % 2 == 1) options.sampling = {.temperature = 0.9, .top_k = 40, .seed = i};
    const auto cached = generator(prompt, options);
    options.uses_cache = false;
    EXPECT_EQ(cached, generator(prompt, options)) << "prompt " << i;
    EXPECT_EQ(cached.size(), 12u);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GenerateWith,
                         testing::Values("gpt2", "gpt-neox", "gpt-neox-sequential", "llama",
                                         "llama-linear-bias", "mistral", "qwen2", "qwen3",
                                         "mistral-window", "smollm3-window", "gemma2", "gemma3",
                                         "phi3-longrope-beyond"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Generate, StopsBehindAnEndToken) {
  Generator generator("llama");
  GenerateOptions options{.max_tokens = 20, .sampling = {.temperature = 1.0, .seed = 1}};
  const auto free = generator({5, 6}, options);
  ASSERT_EQ(free.size(), 20u);
  const auto first = std::ranges::find(free, free[6]);
  options.end_tokens = {-7, free[6]};
  EXPECT_EQ(generator({5, 6}, options), std::vector<std::int32_t>(free.begin(), first + 1));
}

TEST(Generate, AnEndTokenInThePromptDoesNotStopIt) {
  Generator generator("llama");
  EXPECT_EQ(generator({5, 1, 6}, {.max_tokens = 3, .end_tokens = {5, 6}}).empty(), false);
}

TEST(Generate, StopsWhenTheCallerSaysSo) {
  Generator generator("gpt2");
  std::vector<std::int32_t> heard;
  const auto made = generator({3}, {.max_tokens = 10}, [&](std::int32_t token) {
    heard.push_back(token);
    return heard.size() < 4;
  });
  EXPECT_EQ(made.size(), 4u);
  EXPECT_EQ(heard, made);
}

TEST(Generate, EndsAtTheModelsPositions) {
  Generator generator("gpt2");
  const auto positions = static_cast<std::size_t>(generator.spec().max_positions);
  EXPECT_EQ(generator(generator.prompt(positions - 5, 1), {.max_tokens = 100}).size(), 5u);
  EXPECT_TRUE(generator(generator.prompt(positions, 1), {.max_tokens = 100}).empty());
  EXPECT_TRUE(generator({1, 2}, {.max_tokens = 0}).empty());
}

void expect_refused(Generator& generator, const std::vector<std::int32_t>& prompt, ErrorCode code,
                    const std::string& said) {
  try {
    generator(prompt, {.max_tokens = 2});
    FAIL() << "was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
  }
}

TEST(Generate, RefusesPromptsItCannotContinue) {
  Generator generator("gpt2");
  const auto vocab = static_cast<std::int32_t>(generator.spec().vocab);
  expect_refused(generator, {}, ErrorCode::usage, "the prompt is empty");
  expect_refused(generator, {1, vocab}, ErrorCode::data, "token 97 of the prompt");
  expect_refused(generator, {-1}, ErrorCode::data, "token -1 of the prompt");
  expect_refused(generator, generator.prompt(41, 1), ErrorCode::usage,
                 "has 41 tokens, but the model has 40 positions");
}

TEST(Generate, DoesNotDependOnWhatWasGeneratedBefore) {
  Generator generator("qwen3");
  const GenerateOptions options{.max_tokens = 8, .sampling = {.temperature = 1.0, .seed = 9}};
  const auto first = generator({4, 5}, options);
  generator({7, 8, 9}, options);
  EXPECT_EQ(generator({4, 5}, options), first);
}

}  // namespace
}  // namespace heddle
