// Every layer, one line each, under the same checks: see layer_testing.h. To add a layer, add its
// line to kLayers.

#include "nn/embedding.h"
#include "nn/family_blocks.h"
#include "nn/fuse.h"
#include "nn/loss_head.h"
#include "nn/recompute.h"
#include "nn/residual.h"
#include "nn/sample_layers.h"
#include "nn/scale.h"
#include "nn/sequential.h"

namespace heddle {
namespace {

using LayerPtr = std::unique_ptr<Layer>;

std::unique_ptr<Linear> stacked_linear(std::int64_t in) {
  return std::make_unique<Linear>(stacked({{"q", 6}, {"k", 2}, {"v", 3}}, {11, in}),
                                  stacked({{"qb", 6}, {"kb", 2}, {"vb", 3}}, {11}));
}

LossHead::Options in_chunks(std::int64_t tokens) {
  LossHead::Options options;
  options.chunk_tokens = tokens;
  return options;
}

std::unique_ptr<LossHead> head(std::int64_t chunk, double cap = 0.0) {
  LossHead::Options options = in_chunks(chunk);
  options.cap = cap;
  return std::make_unique<LossHead>(parameter("w", {11, 6}), options);
}

std::vector<Layers> branches(Layers first, Layers second) {
  std::vector<Layers> both;
  both.push_back(std::move(first));
  both.push_back(std::move(second));
  return both;
}

/// A list that becomes one layer, with its Mlp in chunks that do not divide the tokens.
LayerPtr chunked(Layers list) {
  return std::move(fuse(std::move(list), {.mlp_tokens = 5}).front());
}

LayerPtr tied_model(Memory&) {
  const auto table = parameter("embedding", {11, 6});
  return std::make_unique<Sequential>(layers(std::make_unique<Embedding>(table), rms_norm(6),
                                             std::make_unique<LossHead>(table, in_chunks(4))));
}

const AttentionShape kMha{.heads = 3, .kv_heads = 3, .head_dim = 4};
const AttentionShape kGqa{.heads = 4, .kv_heads = 2, .head_dim = 6};
const AttentionShape kMqa{.heads = 3, .kv_heads = 1, .head_dim = 4};
const AttentionShape kInterleaved{.heads = 2, .kv_heads = 2, .head_dim = 6, .interleaved = true};

const ops::RouterRule kPlainSoftmax{.renormalize = false};
const ops::RouterRule kGroupedSigmoid{
    .score = ops::RouterRule::Score::sigmoid, .scale = 2.5, .groups = 3, .kept_groups = 2};
const ops::RouterRule kPlainSigmoid{.score = ops::RouterRule::Score::sigmoid, .renormalize = false};
// Of 14 tokens that choose 2 of 6 experts, 3 for each: some are dropped, and some entirely.
const GateRule kLittleRoom{.capacity = {.factor = 0.5}};
const GateRule kRenormalized{
    .capacity = {.factor = 0.5, .victims = ops::Victims::low_scores, .renormalizes = true}};

const Tuning kAdapters{.lora = LoraSpec{.rank = 3, .alpha = 4.5}, .freeze = {}};
const Tuning kDroppedAdapters{.lora = LoraSpec{.rank = 2, .alpha = 4.5, .dropout = 0.4},
                              .freeze = {}};
const Tuning kSomeAdapters{
    .lora = LoraSpec{.rank = 2, .alpha = 3.0, .targets = {"v_proj", "qkv_proj", "down_proj"}},
    .freeze = {}};
const Tuning kFrozenMlp{.lora = {}, .freeze = {"*mlp*"}};
const Tuning kFrozenBiases{.lora = {}, .freeze = {"*.bias"}};
const Tuning kFrozenNorms{.lora = {}, .freeze = {"*norm.weight"}};
const Tuning kFrozenExperts{.lora = {}, .freeze = {"*experts*"}};

// clang-format off
const LayerCase kLayers[] = {
    {.name = "Linear", .make = [](Memory&) -> LayerPtr { return linear(5, 9); }, .width = 9},
    {.name = "LinearWithBias", .make = [](Memory&) -> LayerPtr { return linear(5, 9, true); }, .width = 9},
    {.name = "LinearOfSeveralParts", .make = [](Memory&) -> LayerPtr { return stacked_linear(9); }, .width = 9},
    {.name = "LinearInOut", .make = [](Memory&) -> LayerPtr { return in_out_linear(5, 9, false); }, .width = 9},
    {.name = "LinearInOutWithBias", .make = [](Memory&) -> LayerPtr { return in_out_linear(5, 9, true); }, .width = 9},
    {.name = "RmsNorm", .make = [](Memory&) -> LayerPtr { return rms_norm(9); }, .width = 9},
    {.name = "RmsNormOfOneMore", .make = [](Memory&) -> LayerPtr { return std::make_unique<RmsNorm>(parameter("w", {9}), 1e-5, true); }, .width = 9},
    {.name = "Scale", .make = [](Memory&) -> LayerPtr { return std::make_unique<Sequential>(layers(linear(9, 9), std::make_unique<Scale>(-1.7, 9))); }, .width = 9},
    {.name = "ResidualOfAScaledBranch", .make = [](Memory&) -> LayerPtr { return std::make_unique<Residual>(layers(rms_norm(9), linear(9, 9), std::make_unique<Scale>(0.3, 9))); }, .width = 9},
    {.name = "ResidualWithANormBehind", .make = [](Memory&) -> LayerPtr { return std::make_unique<Residual>(layers(linear(9, 9), rms_norm(9))); }, .width = 9},
    {.name = "LayerNorm", .make = [](Memory&) -> LayerPtr { return layer_norm(9); }, .width = 9},
    {.name = "SwiGlu", .make = [](Memory&) -> LayerPtr { return std::make_unique<SwiGlu>(5); }, .width = 10},
    {.name = "GeGlu", .make = [](Memory&) -> LayerPtr { return std::make_unique<GeGlu>(5, ops::Gelu::tanh); }, .width = 10},
    {.name = "GeluExact", .make = [](Memory&) -> LayerPtr { return std::make_unique<GeluLayer>(9, ops::Gelu::exact); }, .width = 9},
    {.name = "GeluTanh", .make = [](Memory&) -> LayerPtr { return std::make_unique<GeluLayer>(9, ops::Gelu::tanh); }, .width = 9},
    {.name = "Attention", .make = [](Memory& m) -> LayerPtr { return attention(kMha, m); }, .width = kMha.qkv_width()},
    {.name = "AttentionGrouped", .make = [](Memory& m) -> LayerPtr { return attention(kGqa, m); }, .width = kGqa.qkv_width()},
    {.name = "AttentionOneKeyHead", .make = [](Memory& m) -> LayerPtr { return attention(kMqa, m); }, .width = kMqa.qkv_width()},
    {.name = "AttentionInterleaved", .make = [](Memory& m) -> LayerPtr { return attention(kInterleaved, m); }, .width = kInterleaved.qkv_width()},
    {.name = "AttentionRope", .make = [](Memory& m) -> LayerPtr { return attention(kGqa, m, 6); }, .width = kGqa.qkv_width()},
    {.name = "AttentionPartialRope", .make = [](Memory& m) -> LayerPtr { return attention(kInterleaved, m, 2); }, .width = kInterleaved.qkv_width()},
    {.name = "AttentionQkNorm", .make = [](Memory& m) -> LayerPtr { return attention(kGqa, m, 6, true); }, .width = kGqa.qkv_width()},
    {.name = "AttentionQkNormWithoutRope", .make = [](Memory& m) -> LayerPtr { return attention(kMha, m, 0, true); }, .width = kMha.qkv_width()},
    {.name = "AttentionPacked", .make = [](Memory& m) -> LayerPtr { return attention(kGqa, m, 6); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "AttentionQkNormPacked", .make = [](Memory& m) -> LayerPtr { return attention(kMqa, m, 4, true); }, .width = kMqa.qkv_width(), .documents = true},
    {.name = "AttentionQkNormOfAllHeads", .make = [](Memory& m) -> LayerPtr { return attention(kGqa, m, 6, true, true); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "PrepareQkvNormOfAllHeads", .make = [](Memory& m) -> LayerPtr { return prepare_qkv(kGqa, m, 6, true, true); }, .width = kGqa.qkv_width()},
    {.name = "PrepareQkv", .make = [](Memory& m) -> LayerPtr { return prepare_qkv(kGqa, m, 6); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "PrepareQkvInterleaved", .make = [](Memory& m) -> LayerPtr { return prepare_qkv(kInterleaved, m, 2); }, .width = kInterleaved.qkv_width()},
    {.name = "PrepareQkvNorm", .make = [](Memory& m) -> LayerPtr { return prepare_qkv(kGqa, m, 6, true); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "CausalAttention", .make = [](Memory&) -> LayerPtr { return causal_attention(kGqa); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "CausalAttentionInterleaved", .make = [](Memory&) -> LayerPtr { return causal_attention(kInterleaved); }, .width = kInterleaved.qkv_width()},
    {.name = "AttentionInAWindow", .make = [](Memory&) -> LayerPtr { return std::make_unique<CausalAttention>(kGqa, 0.6, 0, 3); }, .width = kGqa.qkv_width(), .documents = true},
    {.name = "AttentionWithACap", .make = [](Memory&) -> LayerPtr { return std::make_unique<CausalAttention>(kGqa, ops::ScoreRule(0.6, 0.8), 0, 4); }, .width = kGqa.qkv_width()},
    {.name = "Embedding", .make = [](Memory&) -> LayerPtr { return std::make_unique<Embedding>(parameter("t", {11, 6})); }},
    {.name = "PositionEmbedding", .make = [](Memory&) -> LayerPtr { return std::make_unique<PositionEmbedding>(parameter("p", {kSeqLen, 6})); }, .width = 6},
    {.name = "PositionEmbeddingPacked", .make = [](Memory&) -> LayerPtr { return std::make_unique<PositionEmbedding>(parameter("p", {kSeqLen, 6})); }, .width = 6, .documents = true},
    {.name = "EmbeddingWithPositions", .make = [](Memory&) -> LayerPtr { return std::make_unique<Sequential>(layers(std::make_unique<Embedding>(parameter("t", {11, 6})), std::make_unique<PositionEmbedding>(parameter("p", {kSeqLen, 6})))); }},
    {.name = "LossHeadOneChunk", .make = [](Memory&) -> LayerPtr { return head(512); }, .width = 6, .is_loss = true},
    {.name = "LossHeadUnevenChunks", .make = [](Memory&) -> LayerPtr { return head(4); }, .width = 6, .is_loss = true},
    {.name = "LossHeadWithACap", .make = [](Memory&) -> LayerPtr { return head(4, 0.7); }, .width = 6, .is_loss = true},
    {.name = "TiedEmbeddingAndHead", .make = tied_model, .is_loss = true},
    {.name = "SequentialOfLinears", .make = [](Memory&) -> LayerPtr { return std::make_unique<Sequential>(layers(linear(5, 9), linear(4, 5, true))); }, .width = 9},
    {.name = "SequentialOfAttentionAndLinears", .make = [](Memory& m) -> LayerPtr { return std::make_unique<Sequential>(attention_branch(9, m)); }, .width = 9},
    {.name = "SequentialOfActivationAndLinears", .make = [](Memory&) -> LayerPtr { return std::make_unique<Sequential>(swiglu_branch(9)); }, .width = 9},
    {.name = "Residual", .make = [](Memory&) -> LayerPtr { return std::make_unique<Residual>(swiglu_branch(9)); }, .width = 9},
    {.name = "ResidualOfTwoBranches", .make = [](Memory& m) -> LayerPtr { return std::make_unique<Residual>(branches(attention_branch(9, m), swiglu_branch(9))); }, .width = 9, .documents = true},
    {.name = "Recompute", .make = [](Memory&) -> LayerPtr { return std::make_unique<Recompute>(std::make_unique<Residual>(swiglu_branch(9)), 9); }, .width = 9},
    block("gpt2"), block("gpt-neox"), block("gpt-neox-sequential"), block("llama"), block("llama-linear-bias"),
    block("mistral"), block("qwen2"), block("qwen3"),
    block("olmo2"), block("smollm3-window"), block("granite"), block("glm"), block("glm4"), block("phi3"), block("starcoder2"),
    block("gemma2"), block("gemma3"), block("llama-yarn"), block("llama-dynamic-beyond"),
    block("olmo2", true), block("granite", true), block("glm4", true), block("gemma2", true), block("gemma3", true),
    block("gpt2", true), block("gpt-neox", true), block("llama", true), block("qwen3", true),
    block("llama", false, true), block("gpt-neox", true, true), block("qwen3", false, true),
    block("gpt2", true, false, 5), block("gpt-neox", true, true, 4), block("llama", true, false, 5), block("qwen3", true, false, 1),
    tuned_block("llama", kAdapters), tuned_block("llama", kAdapters, true), tuned_block("gpt2", kAdapters), tuned_block("phi3", kSomeAdapters),
    tuned_block("qwen3", kSomeAdapters, true), tuned_block("gemma2", kAdapters), tuned_block("olmoe", kAdapters), tuned_block("gpt2", kAdapters, true, 5),
    tuned_block("llama", kDroppedAdapters), tuned_block("llama", kDroppedAdapters, true), tuned_block("gpt2", kDroppedAdapters, true, 5),
    tuned_block("llama", kFrozenMlp), tuned_block("gpt2", kFrozenMlp, true), tuned_block("gpt2", kFrozenBiases), tuned_block("llama", kFrozenNorms), tuned_block("mixtral", kFrozenExperts),
    {.name = "Experts", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2}); }, .width = 9},
    {.name = "ExpertsOneOfAToken", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 1, .rule = kPlainSoftmax}); }, .width = 9},
    {.name = "ExpertsAllOfAToken", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 6}); }, .width = 9},
    {.name = "ExpertsWithoutRenormalizing", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 3, .rule = kPlainSoftmax}); }, .width = 9},
    {.name = "ExpertsBySigmoidInGroups", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 3, .rule = kGroupedSigmoid}); }, .width = 9},
    {.name = "ExpertsWithRoomForFew", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .gate = kLittleRoom}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsWithRoomForFewOfPlainWeights", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 3, .rule = kPlainSoftmax, .gate = kLittleRoom}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsWithRoomForFewBySigmoid", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 3, .rule = kGroupedSigmoid, .gate = kLittleRoom}, true); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsRenormalizedBehindDrops", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .gate = kRenormalized}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsRenormalizedBehindDropsBySigmoid", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 3, .rule = kGroupedSigmoid, .gate = kRenormalized}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsByATransportPlan", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 1, .rule = kPlainSigmoid, .gate = {.choice = GateRule::Choice::sinkhorn}}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsByATransportPlanTwoOfAToken", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .rule = kPlainSoftmax, .gate = {.choice = GateRule::Choice::sinkhorn}}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsThatChooseTokens", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .rule = kPlainSoftmax, .gate = {.choice = GateRule::Choice::expert_choice}}); }, .width = 9},
    {.name = "ExpertsWithNoise", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .rule = kPlainSoftmax, .gate = {.noise = ops::Noise::gaussian, .noise_scale = 4.0}}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsWithNoiseOnTheChoice", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2, .gate = {.noise = ops::Noise::gumbel}}); }, .width = 9, .trains_otherwise = true},
    {.name = "ExpertsByCosines", .make = [](Memory&) -> LayerPtr { return cosine_experts(9); }, .width = 9},
    {.name = "ExpertsByCosinesRecomputed", .make = [](Memory&) -> LayerPtr { return std::make_unique<Recompute>(std::make_unique<Residual>(layers(rms_norm(9), cosine_experts(9))), 9); }, .width = 9},
    {.name = "ExpertsWithASharedOne", .make = [](Memory&) -> LayerPtr { return experts(9, {.per_token = 2}, true); }, .width = 9},
    {.name = "NormAndExpertsWithASharedOne", .make = [](Memory&) -> LayerPtr { return std::move(fuse(layers(rms_norm(9), experts(9, {.per_token = 2}, true))).front()); }, .width = 9},
    {.name = "ExpertsWithASharedOneRecomputed", .make = [](Memory&) -> LayerPtr { return std::make_unique<Recompute>(std::make_unique<Residual>(layers(rms_norm(9), experts(9, {.per_token = 2}, true))), 9); }, .width = 9},
    small_block("mixtral"), small_block("olmoe"), small_block("qwen3_moe"), small_block("mixtral", true), small_block("olmoe", true),
    {.name = "MlpInChunks", .make = [](Memory&) -> LayerPtr { return chunked(layers(linear(10, 9), swiglu(5), linear(9, 5))); }, .width = 9},
    {.name = "MlpWithBiasesInChunks", .make = [](Memory&) -> LayerPtr { return chunked(layers(linear(7, 9, true), gelu(7), linear(9, 7, true))); }, .width = 9},
    {.name = "NormAndMlpInChunks", .make = [](Memory&) -> LayerPtr { return chunked(swiglu_branch(9)); }, .width = 9},
};
// clang-format on

class EveryLayer : public testing::TestWithParam<LayerCase> {
 protected:
  using Halves = LayerRun::Halves;
  LayerRun run_{GetParam()};
  LayerRun::Feed feed_ = run_.feed(1);
};

TEST_P(EveryLayer, HasTheGradientOfTheInputThatDifferencesShow) {
  run_.begin_step();
  const auto dx = run_.pass(feed_, Halves::together);
  if (GetParam().width == 0) {
    EXPECT_TRUE(dx.empty()) << "token ids have no gradient";
    return;
  }
  expect_gradient(
      feed_.x, dx, [&] { return run_.objective(feed_); }, "the input");
}

TEST_P(EveryLayer, HasTheGradientsOfParametersThatDifferencesShow) {
  run_.begin_step();
  run_.pass(feed_, Halves::together);
  const auto gradients = run_.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& p = *run_.store().parameters()[i];
    if (!p.trains) continue;
    expect_gradient(
        p.value, gradients[i], [&] { return run_.objective(feed_); }, p.parts.front().name);
  }
}

TEST_P(EveryLayer, GivesTheSameBitsInTwoHalves) {
  run_.begin_step();
  const auto dx = run_.pass(feed_, Halves::together);
  const auto gradients = run_.gradients();
  run_.begin_step();
  EXPECT_EQ(run_.pass(feed_, Halves::apart), dx);
  EXPECT_EQ(run_.gradients(), gradients);
}

TEST_P(EveryLayer, GivesTheSameBitsWhereItsOutputIsNotWanted) {
  run_.begin_step();
  const auto dx = run_.pass(feed_, Halves::together);
  const auto gradients = run_.gradients();
  run_.begin_step();
  EXPECT_EQ(run_.pass_without_output(feed_), dx);
  EXPECT_EQ(run_.gradients(), gradients);
}

TEST_P(EveryLayer, KeepsTheBytesThatItsCostSays) {
  run_.begin_step();
  const CostShape shape{.sequences = kSequences, .seq_len = kSeqLen, .dtype = DType::f64};
  EXPECT_EQ(run_.saved_bytes_after_forward(feed_), run_.layer().cost(shape).saved_bytes);
}

TEST_P(EveryLayer, AddsUpTheGradientsOfMicroBatches) {
  const auto other = run_.feed(2);
  run_.begin_step();
  run_.pass(feed_, Halves::together);
  auto sum = run_.gradients();
  run_.begin_step();
  run_.pass(other, Halves::together);
  const auto second = run_.gradients();
  run_.begin_step();
  run_.pass(feed_, Halves::apart);
  run_.pass(other, Halves::together);
  const auto both = run_.gradients();
  for (std::size_t p = 0; p < sum.size(); ++p) {
    for (std::size_t i = 0; i < sum[p].size(); ++i) {
      ASSERT_NEAR(both[p][i], sum[p][i] + second[p][i], 1e-11)
          << run_.store().parameters()[p]->parts.front().name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryLayer, testing::ValuesIn(kLayers),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace heddle
