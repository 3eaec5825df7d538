#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "base/rng.h"
#include "checkpoint/hf_folder.h"
#include "comm/threads/thread_world.h"
#include "engine/weights.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "support/source_dir.h"

// The KV cache divided over ranks of axis cp: every rank makes the tokens that one rank makes
// alone, and what travels for a token does not depend on how many came before it.

namespace heddle {
namespace {

std::vector<std::int32_t> random_prompt(std::size_t length, std::int64_t vocab) {
  std::vector<std::int32_t> ids(length);
  for (std::size_t i = 0; i < length; ++i) {
    ids[i] = static_cast<std::int32_t>(random_u64(7, i) % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

struct Made {
  std::vector<std::int32_t> tokens;
  std::int64_t gathered = 0;  ///< bytes of all-gathers over cp
  std::size_t cache_bytes = 0;
};

/// On every rank of the mesh.
std::vector<Made> made_by(const ModelSpec& spec, const ParallelRequest& request,
                          const std::vector<std::int32_t>& prompt, std::int64_t tokens) {
  const auto ranks = static_cast<int>(request.ranks());
  std::vector<Made> made(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    Memory memory;
    Stream stream(1);
    const auto positions = static_cast<std::int64_t>(prompt.size()) + tokens;
    const ParallelPlan plan = make_plan(spec, request, ranks, positions);
    const Mesh mesh(plan.mesh, world.all());
    Model model(spec, {.positions = positions}, plan, mesh, ParamStore::Purpose::inference, memory);
    initialize(model.store(), 3, stream);
    Made& own = made[static_cast<std::size_t>(world.rank())];
    own.tokens = generate(model, prompt, {.max_tokens = tokens}, {}, stream, memory);
    const auto gather = static_cast<std::size_t>(CommOp::all_gather);
    own.gathered = mesh.traffic().on(Axis::cp).by_op[gather].payload_bytes;
    own.cache_bytes = memory.stats().peak_by_tag[static_cast<std::size_t>(MemoryTag::kv_cache)];
  });
  return made;
}

ModelSpec small_model(const char* name) {
  ModelSpec spec = read_model_spec(source_dir() + "/tests/reference/models/" + std::string(name) +
                                   "/config.json");
  spec.max_positions = 4096;
  return spec;
}

TEST(DividedCache, MakesTheTokensOfOneRank) {
  // The last two see a window of a few tokens, in all layers or some.
  for (const char* name : {"llama", "qwen3", "gpt-neox", "mistral-window", "gemma2"}) {
    const ModelSpec spec = small_model(name);
    for (const std::size_t length : {1U, 3U, 29U, 90U}) {
      const auto prompt = random_prompt(length, spec.vocab);
      constexpr std::int64_t kTokens = 70;  // more than one turn
      const auto alone = made_by(spec, {.dp = 1}, prompt, kTokens).front().tokens;
      ASSERT_EQ(alone.size(), static_cast<std::size_t>(kTokens));
      for (const ParallelRequest& request :
           {ParallelRequest{.dp = 1, .cp = 2}, ParallelRequest{.dp = 1, .cp = 3},
            ParallelRequest{.dp = 1, .cp = 5, .context = ContextMethod::lightseq},
            ParallelRequest{.dp = 1, .tp = 2, .cp = 2},
            ParallelRequest{.dp = 1, .pp = 2, .cp = 2, .context = ContextMethod::gather}}) {
        for (const Made& made : made_by(spec, request, prompt, kTokens)) {
          EXPECT_EQ(made.tokens, alone) << name << ", cp " << request.cp << ", prompt " << length;
        }
      }
    }
  }
}

TEST(DividedCache, SendsAsMuchForATokenWhateverCameBefore) {
  const ModelSpec spec = small_model("llama");
  const ParallelRequest on_four{.dp = 1, .cp = 4};
  const auto bytes = [&](std::size_t length, std::int64_t tokens) {
    return made_by(spec, on_four, random_prompt(length, spec.vocab), tokens).front().gathered;
  };
  // Output and lse of every head and rank, in float32, for all tokens but the prompt's.
  const std::int64_t each = 4 * spec.layers * 4 * spec.heads * (spec.head_dim + 1);
  EXPECT_EQ(bytes(40, 11), 10 * each);
  EXPECT_EQ(bytes(1000, 11), 10 * each);
}

TEST(DividedCache, HoldsAShareOfTheKeys) {
  const ModelSpec spec = small_model("llama");
  const auto prompt = random_prompt(2000, spec.vocab);
  const std::size_t alone = made_by(spec, {.dp = 1}, prompt, 4).front().cache_bytes;
  for (const Made& made : made_by(spec, {.dp = 1, .cp = 4}, prompt, 4)) {
    EXPECT_LT(made.cache_bytes, alone / 3);
  }
}

}  // namespace
}  // namespace heddle
