// What experts take of memory: whatever their granularity is, and wherever tokens go.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "comm/threads/thread_world.h"
#include "model/config_testing.h"
#include "model/decoder.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"
#include "planner/memory.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 1, .seq_len = 512, .microbatches = 1};
constexpr std::int64_t kGranularities[] = {1, 2, 4, 8};

/// A token's experts have 512 columns together, of 2048: one expert of four, or `granularity`
/// times as many that are as much narrower.
ModelSpec of_granularity(std::int64_t granularity, const Json& changes = Json::object()) {
  const Json config =
      with(small_config("heddle_moe"), {{"num_hidden_layers", 2},
                                        {"num_attention_heads", 4},
                                        {"hidden_size", 512},
                                        {"intermediate_size", 512},
                                        {"moe_intermediate_size", 512 / granularity},
                                        {"num_experts", 4 * granularity},
                                        {"num_experts_per_tok", granularity},
                                        {"norm_topk_prob", false}});
  return spec_of(with(config, changes));
}

double of_activations(const BytesByTag& bytes) {
  return static_cast<double>(bytes[static_cast<std::size_t>(MemoryTag::activations)]);
}

StepPlan planned_on_one_rank(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  return plan_step(spec, RankTraining::build_options(mesh, batch),
                   make_plan(spec, mesh.request, 1, batch.seq_len), 0, batch);
}

MemoryPlan plan_on(const ParallelRequest& request, const ModelSpec& spec, const BatchShape& batch) {
  return plan_step(spec, RankTraining::build_options({request}, batch),
                   make_plan(spec, request, request.dp, batch.seq_len), 0, batch)
      .memory;
}

/// By layer, the rows that a rank of ep gets for its experts, in multiples of an even share; each
/// rank has so many tokens.
std::vector<double> shares_of(const std::vector<double>& load, int rank, int ep,
                              std::int64_t granularity, std::int64_t tokens) {
  const std::int64_t experts = 4 * granularity, own = experts / ep;
  std::vector<double> shares;
  for (auto layer = load.begin(); layer != load.end(); layer += experts + 2) {
    const double rows = std::accumulate(layer + rank * own, layer + (rank + 1) * own, 0.0);
    shares.push_back(rows / static_cast<double>(tokens * granularity));
  }
  return shares;
}

/// The peak of a step that runs, for experts of which a token has one and for those of which it
/// has eight; what lies between them is planned.
TEST(ExpertMemory, IsFlatInGranularity) {
  for (const bool recompute : {false, true}) {
    for (const bool shares : {false, true}) {
      const MeshCase mesh{{.dp = 1}, recompute};
      double coarse = 0, coarse_kept = 0;
      for (const std::int64_t granularity : kGranularities) {
        SCOPED_TRACE(granularity);
        const ModelSpec spec = of_granularity(
            granularity, {{"n_shared_experts", shares ? Json(granularity) : Json()}});
        const MemoryPlan planned = planned_on_one_rank(spec, mesh, kBatch).memory;
        if (granularity == 1) {
          coarse = of_activations(planned.at_peak);
          coarse_kept = static_cast<double>(planned.kept);
        }
        EXPECT_NEAR(of_activations(planned.at_peak), coarse, 0.02 * coarse);
        // Where blocks are recomputed little else is kept than logits.
        if (!recompute) {
          EXPECT_NEAR(static_cast<double>(planned.kept), coarse_kept, 0.02 * coarse_kept);
        }
        if (granularity != 8 || recompute) continue;
        run_ranks(1, [&](World& world) {
          RankTraining training(spec, mesh, kBatch, world);
          training.run(1);
          EXPECT_EQ(training.memory().stats().at_peak, planned.at_peak);
        });
      }
    }
  }
}

/// Rows that are computed stretch by stretch, against those of micro-batches so small that all
/// their rows are one: the same sums, in another order. Every other mesh has tokens for one stretch
/// only.
TEST(ExpertMemory, OfStretchesHoldsTheSameGradients) {
  const ModelSpec spec = of_granularity(8, {{"hidden_size", 32},
                                            {"moe_intermediate_size", 6},
                                            {"n_shared_experts", 1},
                                            {"topk_method", "noaux_tc"}});
  for (const bool recompute : {false, true}) {
    const auto gradients_of = [&](std::int64_t sequences) {
      auto made = std::make_unique<WholeTensors>();
      run_ranks(1, [&](World& world) {
        MeshCase mesh{{.dp = 1}, recompute};
        mesh.dtype = DType::f64;
        RankTraining training(spec, mesh, {.sequences = 1, .seq_len = 16}, world);
        Memory& memory = training.memory();
        const Tensor ids = memory.alloc({32, 16}, DType::i32, MemoryTag::data);
        std::uint64_t i = 0;
        for (std::int32_t& id : ids.host<std::int32_t>()) {
          id = static_cast<std::int32_t>(random_u64(1, i++) % 50);
        }
        std::vector<MicroBatch> batches;
        for (std::int64_t at = 0; at < 32; at += sequences) {
          const Tensor part = ids.slice(0, at, at + sequences);
          batches.push_back(plain_batch(part, part, 0, memory));
        }
        training.step().gradients(batches);
        made->gather(training.model().store().grad_pieces(), world);
      });
      return made;
    };
    EXPECT_LT(gradients_of(32)->largest_relative_difference(*gradients_of(2)), 1e-12);
  }
}

/// Where drops, or experts that choose, leave so few rows that they are one stretch although there
/// are more choices: against ranks that divide experts, whose rows are not cut into stretches.
TEST(ExpertMemory, OfStretchesHoldsTheSameGradientsWhereFewRowsAreLeft) {
  const Json small = {{"hidden_size", 32}, {"moe_intermediate_size", 6}};
  ModelSpec drops = of_granularity(2, small);
  drops.experts->gating.capacity.factor = 0.5;
  const ModelSpec chosen = of_granularity(
      1, with(small, {{"topk_method", "expert_choice"}, {"scoring_func", "softmax"}}));
  for (const ModelSpec& spec : {drops, chosen}) {
    const auto gradients_of = [&](const ParallelRequest& request, bool recompute) {
      auto made = std::make_unique<WholeTensors>();
      MeshCase mesh{request, recompute};
      mesh.dtype = DType::f64;
      run_ranks(mesh.ranks(), [&](World& world) {
        const BatchShape batch{.sequences = 1, .seq_len = 512, .microbatches = 2 / request.dp};
        RankTraining training(spec, mesh, batch, world);
        training.gradients();
        made->gather(training.model().store().grad_pieces(), world);
      });
      return made;
    };
    const auto divided = gradients_of({.dp = 2, .ep = 2, .zero = 0}, false);
    for (const bool recompute : {false, true}) {
      EXPECT_LT(gradients_of({.dp = 1}, recompute)->largest_relative_difference(*divided), 1e-12);
    }
  }
}

/// The same of the two halves of backward apart, as pipelines without bubbles have them.
TEST(ExpertMemory, IsFlatInGranularityWhereBackwardIsHalved) {
  const MeshCase mesh{{.dp = 1, .pp = 2, .schedule = Pipeline::zb_h1}};
  const BatchShape batch{.sequences = 1, .seq_len = 512, .microbatches = 4};
  for (const int rank : {0, 1}) {
    const auto planned = [&](std::int64_t granularity) {
      const ModelSpec spec = of_granularity(granularity);
      return of_activations(plan_step(spec, RankTraining::build_options(mesh, batch),
                                      make_plan(spec, mesh.request, 2, batch.seq_len), rank, batch)
                                .memory.at_peak);
    };
    const double coarse = planned(1);
    for (const std::int64_t granularity : kGranularities) {
      EXPECT_NEAR(planned(granularity), coarse, 0.02 * coarse) << rank << " " << granularity;
    }
  }
}

/// OLMoE's shape with four layers, as a GPU would hold it: in a dry run, which there is exact.
class OlmoeOnAGpu {
 public:
  explicit OlmoeOnAGpu(std::int64_t granularity)
      : spec_(spec_of({{"model_type", "olmoe"},
                       {"vocab_size", 50304},
                       {"hidden_size", 2048},
                       {"num_hidden_layers", 4},
                       {"num_attention_heads", 16},
                       {"num_experts", 8 * granularity},
                       {"num_experts_per_tok", granularity},
                       {"intermediate_size", 8192 / granularity}})) {}

  MemoryPlan planned(const ParallelRequest& request, bool recompute) const {
    const BatchShape batch{.sequences = 8, .seq_len = 4096, .microbatches = request.pp};
    const BuildOptions options{
        .dtype = DType::bf16, .positions = batch.seq_len, .recompute_blocks = recompute};
    return plan_step(spec_, options, make_plan(spec_, request, request.pp, batch.seq_len), 0, batch,
                     {.device = {Device::Kind::cuda, 0}})
        .memory;
  }

  const ModelSpec& spec() const { return spec_; }

 private:
  ModelSpec spec_;
};

TEST(ExpertMemory, IsFlatInGranularityOnAGpu) {
  for (const ParallelRequest& request :
       {ParallelRequest{.dp = 1}, {.dp = 1, .pp = 2, .schedule = Pipeline::zb_h1}}) {
    MemoryPlan coarse;
    for (std::int64_t granularity = 1; granularity <= 8; granularity *= 2) {
      SCOPED_TRACE(fmt::format("pp {} granularity {}", request.pp, granularity));
      const MemoryPlan planned = OlmoeOnAGpu(granularity).planned(request, false);
      if (granularity == 1) coarse = planned;
      EXPECT_LE(of_activations(planned.at_peak), 1.02 * of_activations(coarse.at_peak));
      EXPECT_GE(of_activations(planned.at_peak), of_activations(coarse.at_peak));
      // With blocks that are kept for reuse: parameters are as many, so all of it is activations.
      const double more =
          static_cast<double>(planned.reserved) - static_cast<double>(coarse.reserved);
      EXPECT_LE(more, 0.04 * of_activations(coarse.at_peak));
    }
  }
}

/// Layers behind which another one keeps more than rows take do not cut them: only the last one of
/// a stage does.
TEST(ExpertMemory, CutsRowsOnAGpuInTheLastLayerOfAStage) {
  constexpr std::int64_t kTokens = 4096;
  const ModelSpec spec = OlmoeOnAGpu(8).spec();
  const auto taken = [&](int block, int end, bool recompute) {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    Memory memory(Memory::Mode::dry, kGpu);
    DecoderPart part;
    part.stages = {{1 + block, 1 + end}};
    const Decoder decoder = build_decoder(
        spec, {.dtype = DType::bf16, .positions = kTokens, .recompute_blocks = recompute}, memory,
        part);
    std::vector<Layer*> units = decoder.unit_pointers();
    const ParamStore store(units, DType::bf16, ParamStore::Purpose::inference, memory);
    Stream stream = Stream::dry(kGpu);
    MicroBatch batch;
    batch.ids = batch.positions = memory.alloc({1, kTokens}, DType::i32, MemoryTag::data);
    Saved saved;
    Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
    units.front()->forward(
        memory.alloc({kTokens, spec.hidden}, DType::bf16, MemoryTag::activations), saved, ctx);
    return of_activations(memory.stats().at_peak);
  };
  const double last = taken(3, 4, false), rows = 6.0 * kTokens * 2048 * 2;
  EXPECT_NEAR(taken(2, 4, false) - last, rows, 0.05 * rows);
  EXPECT_EQ(taken(2, 3, false), last);
  EXPECT_EQ(taken(2, 4, true), taken(3, 4, true));
}

/// Where blocks are recomputed there is less to compare with: rows of one more expert a token, and
/// what routers keep.
TEST(ExpertMemory, GrowsByTheRowsOfOneExpertOnAGpuWhereBlocksAreRecomputed) {
  constexpr double kRows = 8.0 * 4096 * 2048 * 2;
  const double coarse = of_activations(OlmoeOnAGpu(1).planned({.dp = 1}, true).at_peak),
               fine = of_activations(OlmoeOnAGpu(8).planned({.dp = 1}, true).at_peak);
  EXPECT_LE(fine - coarse, 1.35 * kRows);
}

/// Routers that give all experts the same logits send every token to the first ones. What `plan`
/// and `train` say beforehand for that case holds, and is not much more than what is taken.
TEST(ExpertMemory, OfAllTokensOnOneRankIsSaidBeforehand) {
  for (const std::int64_t per_token : {1, 2}) {
    const ModelSpec spec = of_granularity(
        2,
        {{"hidden_size", 64}, {"num_experts_per_tok", per_token}, {"moe_intermediate_size", 64}});
    const MeshCase mesh{{.dp = 4, .ep = 4}};
    std::vector<double> measured(4), said(4), even(4);
    run_ranks(4, [&](World& world) {
      RankTraining training(spec, mesh, kBatch, world);
      for (Parameter* parameter : training.model().store().parameters()) {
        if (!parameter->parts.front().name.ends_with("gate.weight")) continue;
        std::ranges::fill(parameter->value.host<float>(), 0.0F);
      }
      const StepResult result = training.gradients();
      if (world.rank() == 0) {
        EXPECT_EQ(result.expert_load[0], 4.0 * 512);
        EXPECT_EQ(result.expert_load[7], 0.0);
      }
      const auto peak_for = [&](double rows) {
        ParallelPlan plan = training.plan();
        plan.planned_expert_rows = rows;
        return static_cast<double>(
            plan_step(spec, RankTraining::build_options(mesh, kBatch), plan, world.rank(), kBatch)
                .memory.peak);
      };
      const auto at = static_cast<std::size_t>(world.rank());
      measured[at] = static_cast<double>(training.memory().stats().peak);
      said[at] = peak_for(most_expert_rows(spec, mesh.request));
      even[at] = peak_for(1);
    });
    for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_LE(measured[rank], said[rank]) << rank;
    EXPECT_GT(measured[0], even[0]);
    EXPECT_GT(measured[0], 0.9 * said[0]);
  }
}

/// Where rows travel, a rank keeps those that came to it, so a step takes more the more experts a
/// token has: as many rows more for each, and nothing else. How many rows it gets differs from
/// layer to layer; what is planned for the most and for the fewest that a layer of this rank gets
/// holds what is measured between them.
TEST(ExpertMemory, WithEpGrowsByTheRowsThatTravel) {
  constexpr BatchShape kFew{.sequences = 1, .seq_len = 128, .microbatches = 1};
  for (const int ep : {2, 4}) {
    for (const bool recompute : {false, true}) {
      const MeshCase mesh{{.dp = ep, .ep = ep}, recompute};
      std::vector<double> even;
      for (const std::int64_t granularity : kGranularities) {
        SCOPED_TRACE(fmt::format("ep {} recompute {} granularity {}", ep, recompute, granularity));
        const ModelSpec spec = of_granularity(granularity);
        const auto planned = [&](int rank, double rows) {
          ParallelPlan plan = make_plan(spec, mesh.request, ep, kFew.seq_len);
          plan.planned_expert_rows = rows;
          return of_activations(
              plan_step(spec, RankTraining::build_options(mesh, kFew), plan, rank, kFew)
                  .memory.at_peak);
        };
        even.push_back(planned(0, 1));
        if (granularity != 1 && granularity != 8) continue;
        run_ranks(ep, [&](World& world) {
          RankTraining training(spec, mesh, kFew, world);
          const StepResult result = training.run(1);
          const auto shares =
              shares_of(result.expert_load, world.rank(), ep, granularity, kFew.seq_len);
          const double measured = of_activations(training.memory().stats().at_peak);
          EXPECT_LE(measured, planned(world.rank(), std::ranges::max(shares)));
          EXPECT_GE(measured, planned(world.rank(), std::ranges::min(shares)));
        });
      }
      // For each expert more of a token the same; less where the peak is at another moment.
      const double more = (even.back() - even.front()) / 7.0, row_bytes = 128.0 * 512 * 4;
      EXPECT_GT(more, (recompute ? 4.0 : 6.0) * row_bytes);
      EXPECT_LT(more, 7.0 * row_bytes);
      for (std::size_t i = 0; i < even.size(); ++i) {
        const double expected = even[0] + static_cast<double>(kGranularities[i] - 1) * more;
        EXPECT_LE(even[i], 1.001 * expected);
        EXPECT_GE(even[i], 0.95 * expected);
      }
    }
  }
}

/// Where rows come again in backward, what is kept between the passes is the same whatever the
/// granularity. On the way rows are as many as before, of one layer at a time.
TEST(ExpertMemory, WithEpKeepsAsMuchWhereRowsComeAgain) {
  constexpr BatchShape kFew{.sequences = 1, .seq_len = 128, .microbatches = 1};
  for (const int ep : {2, 4}) {
    double coarse = 0;
    for (const std::int64_t granularity : kGranularities) {
      SCOPED_TRACE(fmt::format("ep {} granularity {}", ep, granularity));
      const ModelSpec spec = of_granularity(granularity);
      const MemoryPlan kept = plan_on({.dp = ep, .ep = ep}, spec, kFew),
                       again =
                           plan_on({.dp = ep, .ep = ep, .ep_exchange = "rows=again"}, spec, kFew);
      // Two layers of rows as wide as x, of all choices.
      const std::uint64_t rows = static_cast<std::uint64_t>(2 * 128 * granularity * 512 * 4);
      EXPECT_EQ(kept.kept - again.kept, rows);
      if (granularity == 1) coarse = static_cast<double>(again.kept);
      EXPECT_NEAR(static_cast<double>(again.kept), coarse, 0.02 * coarse);
    }
  }
}

/// By the formulas of a search, of a model of OLMoE's shape. Where rows that came are kept and
/// blocks recomputed, they take a little of both for the most.
class EstimatedMemory : public testing::TestWithParam<std::tuple<DType, bool>> {};

TEST_P(EstimatedMemory, IsWhatIsPlanned) {
  const auto [dtype, recompute] = GetParam();
  const BatchShape batch{.sequences = 2, .seq_len = 2048, .microbatches = 4};
  for (const std::int64_t granularity : kGranularities) {
    const ModelSpec spec =
        of_granularity(granularity, {{"num_hidden_layers", 16},
                                     {"num_attention_heads", 16},
                                     {"hidden_size", 2048},
                                     {"vocab_size", 50304},
                                     {"moe_intermediate_size", 8192 / granularity},
                                     {"num_experts", 8 * granularity}});
    for (const auto& [ep, exchange] :
         {std::pair{1, ""}, {2, ""}, {4, ""}, {2, "rows=again"}, {4, "rows=again"}}) {
      SCOPED_TRACE(fmt::format("granularity {} ep {} {}", granularity, ep, exchange));
      const MeshCase mesh{{.dp = ep, .ep = ep, .ep_exchange = exchange}, recompute};
      const planner::Job job{.spec = spec,
                             .seq_len = batch.seq_len,
                             .batch = ep * batch.sequences * batch.microbatches,
                             .stack = planner::Stack::heddle(dtype)};
      BuildOptions options = RankTraining::build_options(mesh, batch);
      options.dtype = dtype;
      const auto planned =
          plan_step(spec, options, make_plan(spec, mesh.request, ep, batch.seq_len), 0, batch,
                    {.device = job.stack.place()})
              .memory;
      const planner::Candidate candidate{
          mesh.request, recompute ? planner::Recompute::full : planner::Recompute::none,
          static_cast<int>(batch.sequences)};
      const auto split = planner::split_blocks(job, candidate.schedule, 1, 1, candidate.vocabulary);
      const auto estimated =
          planner::estimate_memory({}, job, candidate, split, planner::activations(job, candidate));
      const double activations = of_activations(planned.at_peak),
                   peak = static_cast<double>(planned.peak);
      EXPECT_NEAR(estimated.total(), peak, 0.01 * peak);
      // On a GPU logits are no activations.
      if (dtype == DType::f32) {
        EXPECT_NEAR(estimated.activations, activations, (recompute ? 0.05 : 0.03) * activations);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, EstimatedMemory,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Bool()));

}  // namespace
}  // namespace heddle
