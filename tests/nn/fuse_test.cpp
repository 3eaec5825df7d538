// Which lists become what, and that a fused list computes what the plain one does and keeps less.

#include "nn/fuse.h"

#include "comm/self/self_communicator.h"
#include "mesh/mesh.h"
#include "model/decoder.h"
#include "model/registry.h"
#include "nn/chunked_product.h"
#include "nn/fused_layers.h"
#include "nn/residual.h"
#include "nn/sample_layers.h"
#include "nn/sequential.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr std::int64_t kWidth = 9;

Layers fused(Layers list) { return fuse(std::move(list)); }

/// "RmsNorm Linear": the kinds of a list's layers.
std::string kinds(const Layers& list) {
  std::string text;
  for (const auto& layer : list) {
    const auto is = [&](auto* kind) {
      return dynamic_cast<decltype(kind)>(layer.get()) != nullptr;
    };
    const char* name = is(static_cast<NormProduct*>(nullptr))       ? "NormProduct"
                       : is(static_cast<Mlp*>(nullptr))             ? "Mlp"
                       : is(static_cast<ChunkedProduct*>(nullptr))  ? "Chunked"
                       : is(static_cast<Linear*>(nullptr))          ? "Linear"
                       : is(static_cast<Norm*>(nullptr))            ? "Norm"
                       : is(static_cast<Activation*>(nullptr))      ? "Activation"
                       : is(static_cast<AttentionCore*>(nullptr))   ? "Attention"
                       : is(static_cast<PrepareQkv*>(nullptr))      ? "PrepareQkv"
                       : is(static_cast<CausalAttention*>(nullptr)) ? "CausalAttention"
                       : is(static_cast<Redistribute*>(nullptr))    ? "Redistribute"
                                                                    : "?";
    text += (text.empty() ? "" : " ") + std::string(name);
  }
  return text;
}

TEST(Fuse, MakesOneLayerOfANormAndTheProductBehindIt) {
  EXPECT_EQ(kinds(fused(layers(rms_norm(9), linear(4, 9)))), "NormProduct");
  EXPECT_EQ(kinds(fused(layers(layer_norm(9), in_out_linear(4, 9, true)))), "NormProduct");
  EXPECT_EQ(kinds(fused(layers(rms_norm(9), rms_norm(9), linear(4, 9)))), "Norm NormProduct");
  EXPECT_EQ(kinds(fused(layers(linear(9, 9), rms_norm(9), linear(4, 9), linear(2, 4)))),
            "Linear NormProduct Linear");
}

TEST(Fuse, MakesOneLayerOfAnActivationAndTheLinearsAroundIt) {
  EXPECT_EQ(kinds(fused(layers(linear(10, 9), swiglu(5), linear(9, 5)))), "Mlp");
  EXPECT_EQ(kinds(fused(layers(linear(10, 9, true), swiglu(5), linear(9, 5)))), "Mlp");
  EXPECT_EQ(kinds(fused(layers(in_out_linear(7, 9, true), gelu(7), linear(9, 7)))), "Mlp");
  EXPECT_EQ(kinds(fused(swiglu_branch(9))), "NormProduct");
  EXPECT_EQ(kinds(fused(gelu_branch(9))), "NormProduct");
  Memory memory;
  EXPECT_EQ(kinds(fused(attention_branch(9, memory))), "NormProduct Attention Linear");
}

TEST(Fuse, LeavesAttentionInTwoLayersWhereAnExchangeStandsBetweenThem) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 4};
  const Mesh mesh = Mesh::recorded(MeshShape{}.with(Axis::tp, 2), 0);
  Memory memory;
  EXPECT_EQ(kinds(fused(layers(prepare_qkv(shape, memory), causal_attention(shape)))), "Attention");
  EXPECT_EQ(kinds(fused(layers(prepare_qkv(shape, memory),
                               std::make_unique<Redistribute>(mesh.comm(Axis::tp), shard(0),
                                                              replicate(), shape.qkv_width()),
                               causal_attention(shape)))),
            "PrepareQkv Redistribute CausalAttention");
}

TEST(Fuse, LeavesOtherListsAlone) {
  EXPECT_EQ(kinds(fused({})), "");
  EXPECT_EQ(kinds(fused(layers(linear(4, 9), linear(3, 4)))), "Linear Linear");
  EXPECT_EQ(kinds(fused(layers(linear(10, 9), swiglu(5)))), "Linear Activation");
  EXPECT_EQ(kinds(fused(layers(rms_norm(10), swiglu(5), rms_norm(5)))), "Norm Activation Norm");
  EXPECT_EQ(kinds(fused(layers(gelu(9), linear(4, 9)))), "Activation Linear");
  EXPECT_EQ(kinds(fused(fused(gelu_branch(9)))), "NormProduct");
}

TEST(Fuse, LeavesNormsWhoseOutputIsKept) {
  EXPECT_EQ(kinds(fuse(swiglu_branch(9), {.norm_output = NormOutput::kept})), "Norm Mlp");
  EXPECT_EQ(kinds(fuse(gelu_branch(9), {.norm_output = NormOutput::kept})), "Norm Mlp");
}

TEST(Fuse, PutsOnlyAnMlpIntoChunks) {
  const FuseOptions in_chunks{.norm_output = NormOutput::kept, .mlp_tokens = 4};
  Memory memory;
  EXPECT_EQ(kinds(fuse(swiglu_branch(9), in_chunks)), "Norm Chunked");
  EXPECT_EQ(kinds(fuse(attention_branch(9, memory), in_chunks)), "Norm Linear Attention Linear");
  EXPECT_EQ(kinds(fuse(gelu_branch(9), {.mlp_tokens = 4})), "NormProduct");
}

TEST(Fuse, GoesAcrossAChangeOfPlacementThatMovesNothing) {
  const Mesh mesh = Mesh::recorded(MeshShape{}.with(Axis::tp, 2), 0);
  const auto change = [&](Placement from, Placement to) {
    return std::make_unique<Redistribute>(mesh.comm(Axis::tp), from, to, kWidth);
  };
  const auto branch = [&](Placement stream) {
    return layers(rms_norm(9), change(stream, replicate()), linear(10, 9), swiglu(5), linear(9, 5),
                  change(partial(), stream));
  };
  EXPECT_EQ(kinds(fused(branch(invariant()))), "NormProduct Redistribute");
  EXPECT_EQ(kinds(fused(branch(shard(0)))), "Norm Redistribute Mlp Redistribute");
  EXPECT_EQ(kinds(fuse(branch(invariant()), {.norm_output = NormOutput::kept})),
            "Norm Redistribute Mlp Redistribute");
  EXPECT_EQ(kinds(fused(layers(gelu(9), change(invariant(), replicate()), linear(4, 9)))),
            "Activation Redistribute Linear");
}

std::vector<std::string> parameter_names(const Layers& list) {
  std::vector<std::string> names;
  for (const auto& layer : list) {
    layer->visit([&](const Parameter& p) { names.push_back(p.parts.front().name); });
  }
  return names;
}

TEST(Fuse, KeepsTheOrderOfParameters) {
  const auto list = [] {
    const auto named = [](const std::string& name, std::int64_t out, std::int64_t in) {
      return std::make_unique<Linear>(parameter(name, {out, in}), nullptr);
    };
    const auto norm = [](const std::string& name) {
      return std::make_unique<LayerNorm>(parameter(name, {9}), parameter(name + " bias", {9}),
                                         1e-5);
    };
    return layers(norm("a"), named("b", 7, 9), gelu(7), named("c", 9, 7), norm("d"),
                  named("e", 10, 9), swiglu(5), named("f", 9, 5));
  };
  ASSERT_EQ(kinds(fused(list())), "NormProduct NormProduct");
  EXPECT_EQ(parameter_names(fused(list())), parameter_names(list()));
}

/// A list, made anew for each use.
struct FusionCase {
  std::string name;
  std::function<Layers(Memory&)> make;
};

void PrintTo(const FusionCase& fusion, std::ostream* out) { *out << fusion.name; }

const AttentionShape kGrouped{.heads = 2, .kv_heads = 1, .head_dim = 4};
const AttentionShape kInterleaved{.heads = 2, .kv_heads = 2, .head_dim = 4, .interleaved = true};

// clang-format off
const FusionCase kFusions[] = {
    {"RmsNormAndLinear", [](Memory&) { return layers(rms_norm(9), linear(4, 9, true)); }},
    {"LayerNormAndLinear", [](Memory&) { return layers(layer_norm(9), in_out_linear(4, 9, true)); }},
    {"SwiGluOfPlainLinears", [](Memory&) { return layers(linear(10, 9), swiglu(5), linear(9, 5)); }},
    {"SwiGluOfLinearsWithBias", [](Memory&) { return layers(linear(10, 9, true), swiglu(5), linear(9, 5, true)); }},
    {"SwiGluOfAPlainAndAnotherLinear", [](Memory&) { return layers(linear(10, 9), swiglu(5), in_out_linear(9, 5, false)); }},
    {"GeluOfLinears", [](Memory&) { return layers(linear(7, 9), gelu(7), in_out_linear(9, 7, true)); }},
    {"SwiGluBranch", [](Memory&) { return swiglu_branch(9); }},
    {"GeluBranch", [](Memory&) { return gelu_branch(9); }},
    {"AttentionBranch", [](Memory& m) { return attention_branch(9, m); }},
    {"AttentionWithNorms", [](Memory& m) { return layers(linear(16, 9), prepare_qkv(kGrouped, m, 4, true), causal_attention(kGrouped)); }},
    {"AttentionWithNormsInterleaved", [](Memory& m) { return layers(linear(24, 9), prepare_qkv(kInterleaved, m, 2, true), causal_attention(kInterleaved)); }},
    {"NormAcrossAChange", [](Memory&) {
       static SelfCommunicator alone;
       return layers(rms_norm(9), std::make_unique<Redistribute>(alone, invariant(), replicate(), 9), linear(10, 9), swiglu(5), linear(9, 5)); }},
};
// clang-format on

LayerCase as_layer(const FusionCase& fusion, Layers (*rewrite)(Layers)) {
  return {.name = fusion.name,
          .make = [=](Memory& m) { return std::make_unique<Sequential>(rewrite(fusion.make(m))); },
          .width = kWidth};
}

class EveryFusion : public testing::TestWithParam<FusionCase> {
 protected:
  using Halves = LayerRun::Halves;
  static Layers unchanged(Layers list) { return list; }

  LayerRun plain_{as_layer(GetParam(), unchanged)}, run_{as_layer(GetParam(), fused)};
  LayerRun::Feed feed_ = run_.feed(1);
};

TEST_P(EveryFusion, GivesTheBitsOfThePlainList) {
  EXPECT_EQ(run_.objective(feed_), plain_.objective(feed_));
  for (const Halves halves : {Halves::together, Halves::apart}) {
    plain_.begin_step();
    run_.begin_step();
    EXPECT_EQ(run_.pass(feed_, halves), plain_.pass(feed_, halves));
    EXPECT_EQ(run_.gradients(), plain_.gradients());
  }
}

TEST_P(EveryFusion, HasTheGradientsThatDifferencesShow) {
  run_.begin_step();
  const auto dx = run_.pass(feed_, Halves::together);
  const auto objective = [&] { return run_.objective(feed_); };
  expect_gradient(feed_.x, dx, objective, "the input");
  const auto gradients = run_.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& p = *run_.store().parameters()[i];
    expect_gradient(p.value, gradients[i], objective, p.parts.front().name);
  }
}

TEST_P(EveryFusion, KeepsLessThanThePlainListAndWhatItsCostSays) {
  const CostShape shape{.sequences = kSequences, .seq_len = kSeqLen, .dtype = DType::f64};
  const std::size_t kept = run_.saved_bytes_after_forward(feed_);
  EXPECT_LT(kept, plain_.saved_bytes_after_forward(feed_));
  EXPECT_EQ(kept, run_.layer().cost(shape).saved_bytes);
}

TEST_P(EveryFusion, CostsTheFlopsOfThePlainList) {
  const CostShape shape{.sequences = kSequences, .seq_len = kSeqLen, .dtype = DType::f64};
  const Cost cost = run_.layer().cost(shape), plain = plain_.layer().cost(shape);
  EXPECT_EQ(cost.forward_flops, plain.forward_flops);
  EXPECT_EQ(cost.backward_input_flops, plain.backward_input_flops);
  EXPECT_EQ(cost.backward_weight_flops, plain.backward_weight_flops);
}

INSTANTIATE_TEST_SUITE_P(Table, EveryFusion, testing::ValuesIn(kFusions),
                         [](const auto& info) { return info.param.name; });

TEST(Residual, AddsInsideFusedBranchesWhatItAddsBesideThem) {
  for (const bool has_gelu : {true, false}) {
    const auto branch = [=] { return has_gelu ? gelu_branch(9) : swiglu_branch(9); };
    LayerRun inside({.name = "residual",
                     .make = [&](Memory&) { return std::make_unique<Residual>(fused(branch())); },
                     .width = 9});
    LayerRun alone({.name = "branch",
                    .make = [&](Memory&) { return std::make_unique<Sequential>(fused(branch())); },
                    .width = 9});
    const auto feed = inside.feed(1);
    inside.begin_step();
    alone.begin_step();
    const auto dx = inside.pass(feed, LayerRun::Halves::together);
    const auto branch_dx = alone.pass(feed, LayerRun::Halves::together);
    for (std::size_t i = 0; i < dx.size(); ++i) {
      EXPECT_NEAR(dx[i], branch_dx[i] + feed.dy.host<double>()[i], 1e-13);
    }
    EXPECT_EQ(inside.gradients(), alone.gradients());
  }
}

/// What the first block of a model keeps of a micro-batch of one sequence of 16.
double block_bytes(const ModelSpec& spec, int tp, bool sequence) {
  Memory memory(Memory::Mode::dry);
  const Mesh mesh = Mesh::recorded(MeshShape{}.with(Axis::tp, tp), 0);
  DecoderPart share;
  if (tp > 1) share.tensor = TensorRules(mesh.comm(Axis::tp), sequence);
  share.stages = {{1, 2}};
  const Decoder decoder = build_decoder(spec, {.positions = 16}, memory, share);
  return static_cast<double>(decoder.stages[0][0]->cost({.seq_len = 16}).saved_bytes);
}

TEST(TensorParallelism, KeepsOfABlockWhatOneRankKeeps) {
  for (const char* name :
       {"gpt2", "gpt-neox", "gpt-neox-sequential", "llama-linear-bias", "qwen3"}) {
    ModelSpec spec = read_model_spec(source_dir() + "/tests/reference/models/" + std::string(name) +
                                     "/config.json");
    spec.kv_heads = spec.heads = 4;
    // The stream and the norms' statistics are on every rank, everything else is divided.
    const double statistics = spec.norm == ModelSpec::Norm::rms ? 1.0 : 2.0;
    const double streams = spec.blocks[0].is_parallel ? 1.0 : 2.0;
    const double whole =
        16.0 * 4.0 * (streams * static_cast<double>(spec.hidden) + 2.0 * statistics);
    const double one = block_bytes(spec, 1, false);
    for (const int tp : {2, 4}) {
      EXPECT_EQ(block_bytes(spec, tp, false), whole + (one - whole) / tp) << name << " tp " << tp;
    }
  }
}

}  // namespace
}  // namespace heddle
