// Sites that train apart, each on a mesh of its own: what they compute, send and hold.

#include "base/error.h"
#include "base/json.h"
#include "engine/memory_plan.h"
#include "engine/site_testing.h"
#include "parallel/step/step_calls.h"
#include "parity/traffic_text.h"
#include "parity/whole_tensors.h"

namespace heddle {
namespace {

struct SiteMesh {
  const char* name;
  int ranks;
  ParallelRequest request;
};
void PrintTo(const SiteMesh& mesh, std::ostream* out) { *out << mesh.name; }

const SiteMesh kMeshes[] = {
    {"Dp2Zero0", 4, {.sites = 2, .dp = 2}},
    {"Dp2Zero1", 4, {.sites = 2, .dp = 2, .zero = 1}},
    {"Dp2Zero2", 4, {.sites = 2, .dp = 2, .zero = 2}},
    {"Dp2Zero3", 4, {.sites = 2, .dp = 2, .zero = 3}},
    {"Tp2", 4, {.sites = 2, .dp = 1, .tp = 2, .sequence = true}},
    {"Pp2", 4, {.sites = 2, .dp = 1, .pp = 2}},
    {"Cp2Zero1", 4, {.sites = 2, .dp = 1, .cp = 2, .zero = 1}},
    {"ThreeSitesPp2Dp2Zero1", 12, {.sites = 3, .dp = 2, .pp = 2, .zero = 1}},
};

class Sites : public testing::TestWithParam<SiteMesh> {};
INSTANTIATE_TEST_SUITE_P(Meshes, Sites, testing::ValuesIn(kMeshes),
                         [](const auto& info) { return info.param.name; });

constexpr std::int64_t kSteps = 9;

/// The outer weights after some steps; those that sites hold are the same bit for bit.
void train(const ParallelRequest& request, int ranks, const OuterPolicy& policy,
           const OptimizerConfig& optimizer, WholeTensors& outer, const ModelSpec& model = spec()) {
  run_ranks(ranks, [&](World& world) {
    SiteRank rank(request, policy, world, optimizer, model);
    rank.start();
    for (std::int64_t step = 1; step <= kSteps; ++step) rank.train(step);
    const auto at = static_cast<std::size_t>(rank.state("outer"));
    outer.gather(rank.model().store().state_pieces(at), world);
  });
}

TEST_P(Sites, HaveTheSameOuterWeightsOnAnyMeshInside) {
  const auto& [name, ranks, request] = GetParam();
  for (const OptimizerConfig& optimizer : {OptimizerConfig(AdamWConfig{}), {MuonConfig{}}}) {
    WholeTensors expected, found;
    train({.sites = request.sites}, request.sites, kStreaming, optimizer, expected);
    train(request, ranks, kStreaming, optimizer, found);
    EXPECT_LT(found.largest_relative_difference(expected), 1e-4);
  }
}

TEST(SitesOfExperts, HaveTheSameOuterWeightsOnAnyMeshInside) {
  const ModelSpec model = model_spec(
      Json::parse(R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 24,
                      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                      "num_local_experts": 4, "vocab_size": 101, "output_router_logits": true})"),
      "config");
  for (const OptimizerConfig& optimizer : {OptimizerConfig(AdamWConfig{}), {MuonConfig{}}}) {
    WholeTensors expected;
    train({.sites = 2}, 2, kStreaming, optimizer, expected, model);
    for (const auto& [ranks, request] :
         {std::pair{4, ParallelRequest{.sites = 2, .dp = 2, .ep = 2, .zero = 1}},
          {4, {.sites = 2, .dp = 2, .etp = 2}},
          {8, {.sites = 2, .dp = 2, .tp = 2, .ep = 2, .etp = 2}}}) {
      WholeTensors found;
      train(request, ranks, kStreaming, optimizer, found, model);
      EXPECT_LT(found.largest_relative_difference(expected), 1e-4) << ranks;
    }
  }
}

TEST_P(Sites, SendAndHoldWhatWasPredicted) {
  const auto& [name, ranks, request] = GetParam();
  for (const char* codec : {"none", "e3m0", "topk:8:256"}) {
    OuterPolicy policy = kStreaming;
    if (std::string_view(codec) != "none") policy = with_codec(policy, codec);
    if (std::string_view(codec) == "topk:8:256") policy.feedback = 0.95;
    run_ranks(ranks, [&, request = request](World& world) {
      SiteRank rank(request, policy, world);
      rank.start();
      const int sequences = kSequences / std::max(1, request.dp);
      const StepPlan plan = plan_step(
          spec(), {.positions = kLength}, SiteRank::planned(request, policy, world.size()),
          world.rank(), {.sequences = 1, .seq_len = kLength, .microbatches = sequences});
      std::size_t most = 0;
      MeshTraffic window, predicted_window;
      for (std::int64_t step = 1; step <= 2 * policy.every + 2; ++step) {
        const MeshTraffic before = rank.mesh().traffic();
        rank.memory().reset_peak();
        rank.train(step);
        most = std::max(most, rank.memory().stats().peak);
        const MeshTraffic sent = rank.mesh().traffic() - before;
        MeshTraffic predicted = plan.traffic;
        predicted.on(Axis::site) = outer_traffic(SiteRank::planned(request, policy, world.size()),
                                                 rank.model().units(), step);
        EXPECT_EQ(text(sent), text(predicted)) << codec << ", step " << step;
        if (step > policy.every && step <= 2 * policy.every)
          window.on(Axis::site) += sent.on(Axis::site);
      }
      predicted_window.on(Axis::site) = plan.outer;
      EXPECT_EQ(text(window), text(predicted_window)) << codec;
      EXPECT_EQ(most, plan.memory.peak) << codec << ", rank " << world.rank();
    });
  }
}

/// Of a size at which scales and notes are small beside values.
ModelSpec wide_spec() {
  return model_spec(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
      "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096,
      "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})"),
                    "config");
}

TEST(SparseSites, SendOneOf140PartsOfFloat32InTheSparseForm) {
  const OuterPolicy dense{.every = 30}, sparse = with_codec({.every = 30}, "topk:64:4096");
  const auto request = ParallelRequest{.sites = 2, .dp = 1};
  const auto units = [&](const OuterPolicy& policy) {
    ParallelPlan plan = SiteRank::planned(request, policy, 2);
    Memory memory(Memory::Mode::dry);
    const Mesh mesh = Mesh::recorded(plan.mesh, 0);
    return build_rank_model(wide_spec(), {.positions = kLength}, plan, mesh,
                            ParamStore::Purpose::training, memory)
        .units;
  };
  const double all = static_cast<double>(dense.sent_bytes(units(dense), 0) + sizeof(SiteNote));
  const double few = static_cast<double>(sparse.sent_bytes(units(sparse), 0) + sizeof(SiteNote));
  EXPECT_GE(all / few, 140.0);
}

void expect_other_weights(int sites, int odd, std::int64_t when, const std::string& tensor) {
  std::string said;
  try {
    run_ranks(sites, [&](World& world) {
      SiteRank rank({.sites = sites}, kStreaming, world);
      const auto spoil = [&](const Tensor& values) { values.host<float>()[3] += 1e-3F; };
      const auto stretches = rank.model().store().held();
      const auto spoilt = std::ranges::find_if(stretches, [&](const auto& held) {
        return held.parameter->parts.front().name == tensor;
      });
      ASSERT_NE(spoilt, stretches.end());
      if (when == 0 && world.rank() == odd) spoil(spoilt->value);
      rank.start();
      for (std::int64_t step = 1; step <= 12; ++step) {
        if (step == when && world.rank() == odd) {
          spoil(spoilt->states[static_cast<std::size_t>(rank.state("outer"))]);
        }
        rank.train(step);
      }
    });
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("other outer weights"), std::string::npos) << said;
  EXPECT_NE(said.find(tensor), std::string::npos) << said;
  if (sites == 2) return;  // neither is the odd one
  EXPECT_NE(said.find("site " + std::to_string(odd)), std::string::npos) << said;
}

TEST(OuterWeights, ThatSitesHaveOtherwiseAreNamedAtTheStartAndWhenTheyMeet) {
  expect_other_weights(3, 2, 0, "model.norm.weight");
  expect_other_weights(3, 1, 3, "model.norm.weight");
  expect_other_weights(2, 1, 6, "lm_head.weight");
}

TEST(OuterWeights, ThatWereSettledEarlyGoOnAsIfTheyHadNot) {
  WholeTensors expected, found;
  train({.sites = 2}, 2, kStreaming, {}, expected);
  run_ranks(2, [&](World& world) {
    SiteRank rank({.sites = 2}, kStreaming, world);
    rank.start();
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      rank.train(step);
      rank.outer().settle(rank.stream());
      // Twice, as around an evaluation.
      rank.outer().swap_weights(rank.stream());
      rank.outer().swap_weights(rank.stream());
    }
    const auto at = static_cast<std::size_t>(rank.state("outer"));
    found.gather(rank.model().store().state_pieces(at), world);
  });
  EXPECT_EQ(found.first_difference(expected), "");
}

}  // namespace
}  // namespace heddle
