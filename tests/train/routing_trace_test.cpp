// Which experts tokens take in an evaluation: what the routers chose, whatever the mesh.

#include "checkpoint/routing_trace.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"
#include "engine/weights.h"
#include "model/config_testing.h"
#include "train/evaluate.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// A dense layer, and three in which tokens have two of six experts.
Json mixed_config() {
  return with(small_config("heddle_moe"), {{"num_hidden_layers", 4},
                                           {"hidden_size", 32},
                                           {"num_attention_heads", 4},
                                           {"num_key_value_heads", 2},
                                           {"first_k_dense_replace", 1},
                                           {"max_position_embeddings", 64},
                                           {"vocab_size", 61}});
}

constexpr std::int64_t kSeqLen = 13;

class RoutingTraces : public testing::Test {
 protected:
  /// What the first rank has, after the last window, which is padded.
  RoutingTrace on(const ParallelRequest& request, std::int64_t rows,
                  const Json& config = mixed_config()) {
    RoutingTrace first;
    const auto ranks = static_cast<int>(request.ranks());
    run_ranks(ranks, [&](World& world) {
      Memory memory;
      Stream stream(1);
      const ModelSpec spec = spec_of(config);
      const ParallelPlan plan = make_plan(spec, request, ranks, kSeqLen);
      const Mesh mesh(plan.mesh, world.all());
      Model model(spec, {.positions = kSeqLen}, plan, mesh, ParamStore::Purpose::inference, memory);
      initialize(model.store(), 3, stream);
      RoutingTrace trace;
      const EvalResult result = evaluate(
          model, dataset_, {.rows = rows, .on_progress = {}, .routing = &trace}, stream, memory);
      EXPECT_EQ(trace.tokens(), result.targets);
      if (world.rank() == 0) first = std::move(trace);
    });
    return first;
  }

  const TinyRun run_;
  const Dataset dataset_{
      {.sources = {{run_.path() / "data.tokens"}}, .seq_len = kSeqLen, .holdout = 0.03}};
};

TEST_F(RoutingTraces, AreWhatTheRoutersChose) {
  const RoutingTrace trace = on({.dp = 1}, 2);
  EXPECT_EQ(trace.experts, 6);
  EXPECT_EQ(trace.layers, 3);
  EXPECT_EQ(trace.choices, 2);
  // Window by window, straight from the routers.
  Memory memory;
  Stream stream(1);
  const ModelSpec spec = spec_of(mixed_config());
  Model model(spec, {.positions = kSeqLen}, ParamStore::Purpose::inference, memory);
  initialize(model.store(), 3, stream);
  std::vector<std::int32_t> chosen;
  for (std::int64_t window = 0; window < dataset_.eval_windows(); ++window) {
    const Batch batch = dataset_.eval_batch(window, 1, memory);
    std::vector<std::int32_t> taken(kSeqLen * 3 * 2, -1);
    model.losses(to_microbatch(batch), stream, memory, [&](const Choices& choices) {
      for (std::size_t t = 0; t < choices.numbers.size(); ++t) {
        const auto row = choices.experts_TK.select(0, static_cast<std::int64_t>(t));
        std::ranges::copy(row.host<std::int32_t>(),
                          taken.begin() + static_cast<std::ptrdiff_t>(
                                              (choices.numbers[t] * 3 + choices.layer) * 2));
      }
    });
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_GE(taken[i], 0);
      EXPECT_LT(taken[i], 6);
      if (batch.targets_BS.host<std::int32_t>()[i / 6] >= 0) chosen.push_back(taken[i]);
    }
  }
  EXPECT_EQ(trace.taken, chosen);
  for (std::size_t i = 0; i < chosen.size(); i += 2) EXPECT_NE(chosen[i], chosen[i + 1]);
}

TEST_F(RoutingTraces, AreTheSameOnEveryMesh) {
  const RoutingTrace alone = on({.dp = 1}, 1);
  ASSERT_GT(alone.tokens(), 100);
  for (const ParallelRequest& request :
       {ParallelRequest{.dp = 2, .ep = 2}, ParallelRequest{.dp = 3},
        ParallelRequest{.dp = 1, .tp = 2}, ParallelRequest{.dp = 1, .tp = 2, .ep = 2},
        ParallelRequest{.dp = 1, .pp = 2}, ParallelRequest{.dp = 1, .cp = 2, .ep = 2}}) {
    EXPECT_EQ(on(request, 2).taken, alone.taken)
        << "dp " << request.dp << " tp " << request.tp << " pp " << request.pp << " cp "
        << request.cp << " ep " << request.ep;
  }
}

/// Experts that choose leave some choices of tokens open.
TEST_F(RoutingTraces, HaveNoExpertWhereNoneTookTheToken) {
  const RoutingTrace trace =
      on({.dp = 1}, 2,
         with(mixed_config(), {{"topk_method", "expert_choice"}, {"scoring_func", "softmax"}}));
  EXPECT_EQ(trace.choices, 6);
  EXPECT_GT(std::ranges::count(trace.taken, -1), 0);
  EXPECT_GE(std::ranges::min(trace.taken), -1);
}

TEST_F(RoutingTraces, ArePlannedWith) {
  const TinyRun run;
  run.write("config.json", mixed_config().dump());
  ASSERT_EQ(run.train({"train.steps=2"}).status, 0);
  const std::string trace = run.path() / "trace", model = run.run_folder();
  const Outcome outcome = run_heddle({"eval", model, "--data", run.path() / "data.tokens",
                                      "--max-tokens", "500", "--routing-trace", trace, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_routing_trace(trace).tokens(),
            parse_json(outcome.out, "stdout").at("tokens").get<std::int64_t>());
  const Outcome planned = run_heddle({"plan", "experts", trace, "--ranks", "2", "--json"});
  ASSERT_EQ(planned.status, 0) << planned.err;
  EXPECT_EQ(parse_json(planned.out, "stdout").at("layers"), 3);
}

TEST_F(RoutingTraces, NeedLayersWithExperts) {
  ASSERT_EQ(run_.train({"train.steps=2"}).status, 0);
  const Outcome outcome =
      run_heddle({"eval", run_.run_folder(), "--data", run_.path() / "data.tokens",
                  "--routing-trace", run_.path() / "trace"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("0 layers with experts"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace heddle
