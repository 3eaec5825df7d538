// Models with experts on meshes: as on one rank, planned as they run, searched and simulated.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "comm/threads/thread_world.h"
#include "model/config_testing.h"
#include "ops/softmax_xent.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"
#include "planner/search.h"
#include "planner/simulated_step.h"
#include "planner/step_units.h"
#include "support/source_dir.h"
#include "verify/reference.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 2};

/// Four layers of a family, with both losses of the router.
ModelSpec deep(const std::string& family, const Json& changes = Json::object()) {
  ModelSpec spec = spec_of(with(with(small_config(family), {{"num_hidden_layers", 4},
                                                            {"num_attention_heads", 4},
                                                            {"num_key_value_heads", 2},
                                                            {"hidden_size", 32}}),
                                changes));
  spec.experts->loss = {.balance = 0.02, .z = 0.001};
  return spec;
}

ModelSpec mixed(std::int64_t experts) {
  return deep("qwen3_moe", {{"decoder_sparse_step", 2}, {"head_dim", 8}, {"num_experts", experts}});
}

/// With a shared expert, scores by sigmoid in groups, and a dense layer first.
ModelSpec shared(std::int64_t experts) {
  return deep("heddle_moe", {{"num_experts", experts},
                             {"n_shared_experts", 1},
                             {"moe_intermediate_size", 12},
                             {"n_group", experts / 2},
                             {"topk_group", 2},
                             {"routed_scaling_factor", 2.5},
                             {"first_k_dense_replace", 1}});
}

/// As DeepSeek-V3 keeps them balanced: a bias that moves so fast that it changes choices.
ModelSpec biased(std::int64_t experts = 6) {
  ModelSpec spec =
      deep("heddle_moe",
           {{"num_experts", experts}, {"topk_method", "noaux_tc"}, {"first_k_dense_replace", 1}});
  spec.experts->bias_rate = 0.03;
  return spec;
}

/// Which experts every token of a step takes, put together from what ranks route. Ranks that route
/// the same token must agree, or the test fails.
class WholeChoices {
 public:
  using Key = std::pair<std::int64_t, std::uint64_t>;  // layer, token of the step

  OnChoices collector() {
    return [this](const Choices& choices) {
      const std::lock_guard lock(mutex_);
      for (std::size_t t = 0; t < choices.numbers.size(); ++t) {
        const Tensor row = choices.experts_TK.select(0, static_cast<std::int64_t>(t));
        const auto experts = row.host<std::int32_t>();
        const std::vector<std::int32_t> own(experts.begin(), experts.end());
        const Key key{choices.layer, choices.numbers[t]};
        const auto [at, is_new] = by_token_.try_emplace(key, own);
        EXPECT_TRUE(is_new || at->second == own)
            << "layer " << key.first << " token " << key.second;
      }
    };
  }
  std::map<Key, std::vector<std::int32_t>> take() { return std::exchange(by_token_, {}); }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<std::int32_t>> by_token_;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<double> first_load;
  /// Of the steps.
  std::vector<std::map<WholeChoices::Key, std::vector<std::int32_t>>> choices;
  double norm = 0.0;
  std::unique_ptr<WholeTensors> gradients = std::make_unique<WholeTensors>();
  std::unique_ptr<WholeTensors> weights = std::make_unique<WholeTensors>();
};

/// Of a step: four where replicas can divide them, else one for each replica.
std::int64_t microbatches_for(std::int64_t dp) { return 4 % dp == 0 ? 4 : dp; }

/// Three steps, the first without an update. Replicas divide the step's micro-batches.
Outcome train(const ModelSpec& spec, const ParallelRequest& request, bool recompute = false,
              std::int64_t microbatches = 0) {
  if (microbatches == 0) microbatches = microbatches_for(request.dp);
  const MeshCase mesh{request, recompute};
  BatchShape batch = kBatch;
  batch.microbatches = static_cast<int>(microbatches / request.dp);
  Outcome outcome;
  WholeChoices choices;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch, world);
    training.step().watch_choices(choices.collector());
    const auto keep_choices = [&] {
      world.all().barrier();
      if (world.rank() == 0) outcome.choices.push_back(choices.take());
      world.all().barrier();
    };
    const StepResult first = training.gradients();
    keep_choices();
    outcome.gradients->gather(training.model().store().grad_pieces(), world);
    const StepResult second = training.run(1);
    keep_choices();
    const StepResult third = training.run(2);
    keep_choices();
    outcome.weights->gather(training.model().store().value_pieces(), world);
    if (world.rank() == 0) {
      outcome.losses = {first.loss, second.loss, third.loss};
      outcome.norm = first.grad_norm;
      outcome.first_load = first.expert_load;
    }
  });
  return outcome;
}

/// Trained once for all meshes with the same micro-batches.
const Outcome& on_one_rank(const ModelSpec& spec, std::int64_t microbatches) {
  static std::map<std::string, Outcome> known;
  const std::string name = fmt::format("{} {} {}", microbatches, spec.family, spec.config->dump());
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(name, train(spec, {.dp = 1}, false, microbatches)).first->second;
}

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> all = {
      {{.dp = 2, .zero = 0}},
      {{.dp = 2, .zero = 1}},
      {{.dp = 4, .zero = 2}},
      {{.dp = 4, .zero = 3}},
      {{.dp = 2, .zero = 3}, true},
      {{.dp = 1, .tp = 2}},
      {{.dp = 1, .tp = 2}, true},
      {{.dp = 1, .tp = 2, .sequence = true}},
      {{.dp = 1, .pp = 2}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::v_half}, true},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring}},
      {{.dp = 1, .cp = 3, .context = ContextMethod::gather}},
      {{.dp = 2, .cp = 2, .context = ContextMethod::ulysses, .zero = 3}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = ContextMethod::ring, .sequence = true}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::zb_h1}},
      // Experts divided over ranks of every axis.
      {{.dp = 2, .ep = 2}},
      {{.dp = 2, .ep = 2, .zero = 1}, true},
      {{.dp = 4, .ep = 2, .zero = 2}},
      {{.dp = 4, .ep = 2, .zero = 3}},
      {{.dp = 4, .ep = 4, .zero = 3}},
      {{.dp = 8, .ep = 8, .zero = 1}},
      {{.dp = 8, .ep = 4, .zero = 2}},
      {{.dp = 16, .ep = 8, .zero = 3}},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring, .ep = 2}},
      {{.dp = 1, .cp = 3, .context = ContextMethod::gather, .ep = 3}},
      {{.dp = 2, .cp = 3, .context = ContextMethod::ring, .ep = 6, .zero = 1}},
      {{.dp = 1, .tp = 2, .ep = 2}},
      {{.dp = 1, .tp = 2, .ep = 2}, true},
      {{.dp = 1, .tp = 2, .ep = 2, .sequence = true}, true},
      {{.dp = 2, .tp = 2, .ep = 2, .zero = 3, .sequence = true}},
      {{.dp = 2, .tp = 2, .ep = 4, .zero = 1}},
      {{.dp = 2, .pp = 2, .ep = 2, .zero = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 2,
        .tp = 2,
        .pp = 2,
        .ep = 2,
        .zero = 3,
        .schedule = Pipeline::interleaved,
        .chunks = 2}},
      {{.dp = 3, .ep = 3, .zero = 2}},
      {{.dp = 6, .ep = 6, .zero = 3}},
      {{.dp = 8, .ep = 2, .zero = 3}},
      {{.dp = 1, .cp = 4, .context = ContextMethod::ring, .ep = 4}},
      {{.dp = 1, .tp = 4, .ep = 4, .sequence = true}},
      {{.dp = 2, .tp = 4, .ep = 8, .zero = 1}},
      {{.dp = 1, .pp = 2, .cp = 2, .context = ContextMethod::ring, .ep = 2}, true},
      {{.dp = 2, .pp = 4, .ep = 2, .zero = 3, .schedule = Pipeline::gpipe}},
      // And their width.
      {{.dp = 2, .etp = 2}},
      {{.dp = 2, .etp = 2, .zero = 3}, true},
      {{.dp = 4, .etp = 2, .zero = 1}},
      {{.dp = 4, .etp = 4, .zero = 2}},
      {{.dp = 4, .ep = 2, .etp = 2}},
      {{.dp = 4, .ep = 2, .etp = 2, .zero = 1}, true},
      {{.dp = 4, .ep = 2, .etp = 2, .zero = 3}},
      {{.dp = 8, .ep = 4, .etp = 2, .zero = 2}},
      {{.dp = 8, .ep = 2, .etp = 2, .zero = 3}},
      {{.dp = 16, .ep = 4, .etp = 2, .zero = 1}},
      {{.dp = 16, .ep = 8, .etp = 2}},
      {{.dp = 32, .ep = 8, .etp = 2, .zero = 3}},
      {{.dp = 6, .ep = 3, .etp = 2, .zero = 3}},
      {{.dp = 1, .tp = 2, .etp = 2}},
      {{.dp = 1, .tp = 2, .etp = 2, .sequence = true}, true},
      {{.dp = 2, .tp = 2, .ep = 2, .etp = 2, .zero = 3}},
      {{.dp = 1, .tp = 4, .ep = 2, .etp = 2, .sequence = true}},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring, .etp = 2}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = ContextMethod::gather, .ep = 2, .etp = 2}, true},
      {{.dp = 2, .pp = 2, .etp = 2, .zero = 3, .schedule = Pipeline::zb_h1}},
      {{.dp = 4, .pp = 2, .ep = 2, .etp = 2, .zero = 2, .schedule = Pipeline::v_half}},
      {{.dp = 2, .tp = 2, .pp = 2, .ep = 2, .etp = 2, .zero = 1, .schedule = Pipeline::zb_v}},
      // Every way of exchanging.
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "r=0"}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "r=1", .zero = 3}},
      {{.dp = 8, .ep = 2, .etp = 4, .ep_exchange = "r=2 degree=2", .zero = 1}},
      {{.dp = 4, .ep = 4, .ep_exchange = "2dh=2 degree=3/2", .zero = 2}, true},
      {{.dp = 6, .ep = 6, .ep_exchange = "2dh=3 degree=1/2"}},
      {{.dp = 4, .ep = 4, .ep_exchange = "rows=again", .zero = 1}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "degree=2/3 rows=again"}, true},
      {{.dp = 2, .pp = 2, .ep = 2, .ep_exchange = "rows=again", .schedule = Pipeline::zb_h1}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "turns 2dh=2"}},
      {{.dp = 2,
        .tp = 2,
        .pp = 2,
        .ep = 2,
        .etp = 2,
        .ep_exchange = "turns",
        .zero = 3,
        .schedule = Pipeline::zb_h1},
       true}};
  return all;
}

std::vector<ModelSpec> models(std::int64_t experts = 6) {
  const Json count = {{"num_experts", experts}};
  return {deep("mixtral", count),
          deep("olmoe", count),
          mixed(experts),
          shared(experts),
          biased(experts),
          deep("heddle_moe",
               {{"num_experts", experts}, {"cosine_router_dim", 6}, {"scoring_func", "softmax"}})};
}

class ExpertsOn : public testing::TestWithParam<std::size_t> {
 protected:
  const MeshCase& mesh_ = meshes()[GetParam()];
  /// Those that the mesh can divide, with a number of experts that ep divides.
  std::vector<ModelSpec> fitting() const {
    std::vector<ModelSpec> all = models(6 % mesh_.request.ep == 0 ? 6 : 8);
    std::erase_if(all, [&](const ModelSpec& spec) {
      return !problems_of(spec, mesh_.request, mesh_.ranks()).empty();
    });
    return all;
  }
};

TEST_P(ExpertsOn, TrainAsOnOneRank) {
  ASSERT_FALSE(fitting().empty()) << "no model here has the heads, layers or widths for this mesh";
  for (const ModelSpec& spec : fitting()) {
    SCOPED_TRACE(spec.family);
    const std::int64_t microbatches = microbatches_for(mesh_.request.dp),
                       tokens = microbatches * kBatch.sequences * kBatch.seq_len;
    const Outcome& one = on_one_rank(spec, microbatches);
    EXPECT_LT(one.losses[2], one.losses[0]);
    const Outcome made = train(spec, mesh_.request, mesh_.recompute);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(made.losses[i], one.losses[i], 1e-5);
    EXPECT_NEAR(made.norm, one.norm, 1e-6 * one.norm);
    EXPECT_EQ(made.first_load, one.first_load);
    for (std::size_t i = 0; i < 3; ++i) {
      // Of every token and every layer with experts.
      EXPECT_EQ(std::ssize(one.choices[i]), spec.expert_layers() * tokens);
      EXPECT_TRUE(made.choices[i] == one.choices[i]) << "step " << i;
    }
    EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    EXPECT_LT(made.weights->largest_relative_difference(*one.weights), 1e-4);
  }
}

/// Where experts are divided, what a rank receives depends on the tokens: planned is that all get
/// the same, which is right for all ranks together.
TEST_P(ExpertsOn, ArePlannedAsTheyRun) {
  ASSERT_FALSE(fitting().empty()) << "no model here has the heads, layers or widths for this mesh";
  const bool is_divided = mesh_.request.divides_experts();
  for (const ModelSpec& spec : fitting()) {
    SCOPED_TRACE(spec.family);
    std::mutex one_at_a_time;
    std::map<std::pair<std::string, std::size_t>, std::int64_t> excess;
    run_ranks(mesh_.ranks(), [&](World& world) {
      RankTraining training(spec, mesh_, kBatch, world);
      training.run(1);
      const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh_, kBatch),
                                      training.plan(), world.rank(), kBatch);
      const MemoryStats stats = training.memory().stats();
      MeshTraffic traffic = training.mesh().traffic(), planned = plan.traffic;
      const std::lock_guard lock(one_at_a_time);
      if (!is_divided) {
        EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      }
      traffic.with(planned, [&](const char* group, const CommCounts& sent, const CommCounts& said) {
        for (std::size_t op = 0; op < kCommOps; ++op) {
          const std::int64_t more = sent.by_op[op].payload_bytes - said.by_op[op].payload_bytes;
          if (!is_divided) {
            EXPECT_EQ(more, 0) << group;
          }
          excess[{group, op}] += more;
          EXPECT_EQ(sent.by_op[op].calls, said.by_op[op].calls) << group;
        }
      });
    });
    for (const auto& [call, bytes] : excess) EXPECT_EQ(bytes, 0) << call.first;
  }
}

/// The project's own, and those that developers share where they are there.
TEST_P(ExpertsOn, HoldsReferences) {
  int held = 0;
  for (const fs::path& folder : {fs::path(source_dir() + "/tests/reference/models"),
                                 shared_folder() / "fixtures" / "models"}) {
    for (const char* name : {"mixtral", "olmoe", "qwen3-moe", "heddle-moe"}) {
      if (!fs::exists(folder / name)) continue;
      const ModelSpec spec = read_model_spec(folder / name / "config.json");
      if (!problems_of(spec, mesh_.request, mesh_.ranks()).empty()) continue;
      ReferenceReport report;
      run_ranks(mesh_.ranks(), [&](World& world) {
        const ReferenceReport own = verify_reference(
            folder / name, {.recompute = mesh_.recompute, .parallel = mesh_.request}, world);
        if (world.rank() == 0) report = own;
      });
      EXPECT_TRUE(report.ok()) << folder / name << ": " << to_json(report).dump(1);
      ++held;
    }
  }
  if (held == 0) GTEST_SKIP() << "no reference has the heads or layers for this mesh";
}

INSTANTIATE_TEST_SUITE_P(Parity, ExpertsOn, testing::Range(std::size_t{0}, meshes().size()),
                         [](const auto& info) { return name_of(meshes()[info.param]); });

TEST(Experts, MayHaveAWidthThatTpDoesNotDivideWhereEpOrEtpDivideThem) {
  for (const ModelSpec& spec :
       {deep("mixtral", {{"intermediate_size", 6}}),
        deep("heddle_moe", {{"moe_intermediate_size", 6}, {"n_shared_experts", 1}})}) {
    const Outcome& one = on_one_rank(spec, 4);
    for (const ParallelRequest& request :
         {ParallelRequest{.dp = 1, .tp = 4, .ep = 2, .etp = 2, .sequence = true},
          {.dp = 1, .tp = 4, .etp = 2}}) {
      const Outcome made = train(spec, request, true);
      EXPECT_NEAR(made.norm, one.norm, 1e-6 * one.norm);
      EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    }
  }
}

TEST(Experts, RunOnAtLeastFiftyMeshesOfEverySizeOfEp) {
  std::set<std::string> names;
  std::set<int> sizes, parts, zeros;
  for (const MeshCase& mesh : meshes()) {
    if (!mesh.request.divides_experts()) continue;
    names.insert(name_of(mesh));
    sizes.insert(mesh.request.ep);
    parts.insert(mesh.request.etp);
    zeros.insert(mesh.request.zero);
  }
  EXPECT_GE(names.size(), 50u);
  // Of plain data parallelism, every ep with every etp and edp.
  for (const int ep : {1, 2, 4, 8}) {
    for (const int etp : {1, 2}) {
      for (const int edp : {1, 2}) {
        const auto is_it = [&](const MeshCase& mesh) {
          const ParallelRequest& r = mesh.request;
          return r.ranks() == r.dp && r.ep == ep && r.etp == etp && r.dp == ep * etp * edp;
        };
        EXPECT_TRUE(ep * etp * edp == 1 || std::ranges::any_of(meshes(), is_it))
            << "ep " << ep << " etp " << etp << " edp " << edp;
      }
    }
  }
  EXPECT_EQ(sizes, (std::set{1, 2, 3, 4, 6, 8}));
  EXPECT_EQ(parts, (std::set{1, 2, 4}));
  EXPECT_EQ(zeros, (std::set{0, 1, 2, 3}));
}

/// One layout of weights: what plans change is how they meet rows, from one step to the next.
TEST(Experts, TrainAlikeWhateverTheirExchangesAre) {
  const ModelSpec spec = deep("mixtral");
  const auto losses_of = [&](const std::string& exchange) {
    const MeshCase mesh{{.dp = 8, .ep = 2, .etp = 4, .ep_exchange = exchange, .zero = 1}};
    std::vector<double> losses;
    run_ranks(mesh.ranks(), [&](World& world) {
      RankTraining training(spec, mesh, {.sequences = 1, .seq_len = 13, .microbatches = 1}, world);
      for (int step = 1; step <= 10; ++step) {
        const double loss = training.run(step).loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  const auto usual = losses_of("");
  for (const char* exchange :
       {"r=0", "r=1", "r=2", "degree=4", "2dh=2", "rows=again", "adaptive 2dh=2",
        // Layers and steps have others: 25, and a step has four layers.
        "turns 2dh=2"}) {
    const auto made = losses_of(exchange);
    for (std::size_t i = 0; i < usual.size(); ++i) {
      EXPECT_NEAR(made[i], usual[i], 1e-5) << exchange << " step " << i;
    }
  }
}

/// All-to-alls over ep of all ranks in one step.
struct Dispatched {
  double loss = 0;
  CommCounts::Entry counted, planned;
};
Dispatched dispatch(const ModelSpec& spec, const std::string& exchange,
                    const Compression& compress) {
  const MeshCase mesh{{.dp = 4, .ep = 4, .ep_exchange = exchange}, false, 0, compress};
  Dispatched all;
  std::mutex one_at_a_time;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, kBatch, world);
    const double loss = training.run(1).loss;
    const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh, kBatch),
                                    training.plan(), world.rank(), kBatch);
    const std::lock_guard lock(one_at_a_time);
    all.loss = loss;
    const auto add = [](CommCounts::Entry& sum, const MeshTraffic& traffic) {
      const auto op = static_cast<std::size_t>(CommOp::all_to_all);
      const auto& [calls, payload, wire] = traffic.on(Axis::ep).by_op[op];
      sum.add(calls, payload, wire);
    };
    add(all.counted, training.mesh().traffic());
    add(all.planned, plan.traffic);
  });
  return all;
}

/// Codecs of rows change results a little, and counts say what travelled.
TEST(Experts, SendTheirRowsAsACodecsBytes) {
  const ModelSpec spec = deep("mixtral", {{"num_experts", 8}});
  for (const char* exchange : {"", "2dh=2", "degree=2"}) {
    SCOPED_TRACE(exchange);
    const Dispatched plain = dispatch(spec, exchange, {}),
                     coded = dispatch(spec, exchange, {.experts = "fp8:32", .min_bytes = 0}),
                     small = dispatch(spec, exchange, {.experts = "fp8:32", .min_bytes = 1 << 20});
    EXPECT_NEAR(coded.loss, plain.loss, 0.01);
    EXPECT_NE(coded.loss, plain.loss);
    EXPECT_EQ(small.loss, plain.loss);
    EXPECT_EQ(plain.counted, plain.planned);
    EXPECT_EQ(coded.counted, coded.planned);
    EXPECT_EQ(coded.counted.payload_bytes, plain.counted.payload_bytes);
    // A row of 32 values is 32 bytes and a scale; the weights of choices go plainly.
    EXPECT_LT(coded.counted.wire_bytes, plain.counted.wire_bytes * 2 / 5);
  }
}

/// Optimizers of whole matrices, and sums of gradients that are not plain ones.
TEST(Experts, TrainWithEveryOptimizer) {
  for (const auto& request :
       {ParallelRequest{.dp = 4, .ep = 2}, ParallelRequest{.dp = 4, .ep = 2, .etp = 2},
        ParallelRequest{.dp = 2, .tp = 2, .ep = 2, .zero = 1},
        ParallelRequest{.dp = 4, .ep = 2, .etp = 2, .zero = 1},
        ParallelRequest{.dp = 8, .ep = 2, .etp = 2, .zero = 1}}) {
    const ModelSpec spec = deep("mixtral");
    const auto trained = [&](const OptimizerConfig& optimizer, const ParallelRequest& on,
                             DType dtype = DType::f32) {
      MeshCase mesh{on};
      mesh.dtype = dtype;
      BatchShape batch = kBatch;
      batch.microbatches = std::max(1, 8 / on.dp);
      std::vector<double> losses;
      run_ranks(mesh.ranks(), [&](World& world) {
        RankTraining training(spec, mesh, batch, world, optimizer);
        for (int step = 1; step <= 4; ++step) {
          const double loss = training.run(step, 1e-2).loss;
          if (world.rank() == 0) losses.push_back(loss);
        }
      });
      return losses;
    };
    SCOPED_TRACE(name_of(MeshCase{request}));
    const auto expect_equal = [&](const OptimizerConfig& optimizer, DType dtype, double within) {
      const auto one = trained(optimizer, {.dp = 1}, dtype),
                 made = trained(optimizer, request, dtype);
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(made[i], one[i], within) << i;
    };
    expect_equal(MuonConfig{}, DType::f64, 1e-9);
    // Where a gradient is all rounding, a smaller eps would make a whole step of it.
    expect_equal(OnebitAdamConfig{.adamw = {.eps = 1e-6}, .freeze_step = 100}, DType::f32, 2e-5);
    // Frozen, signs are exchanged: near what plain sums give, and falling.
    const auto plain = trained(OnebitAdamConfig{.freeze_step = 100}, request),
               frozen = trained(OnebitAdamConfig{.freeze_step = 2}, request);
    EXPECT_EQ(frozen[1], plain[1]);
    EXPECT_LT(frozen[3], plain[0]);
  }
}

TEST(Experts, RecomputedHaveTheSameBits) {
  for (const ModelSpec& spec : models()) {
    const Outcome one = train(spec, {.dp = 1}), again = train(spec, {.dp = 1}, true);
    EXPECT_EQ(again.gradients->first_difference(*one.gradients), "") << spec.family;
  }
}

/// Of the bias of a layer, behind some steps.
std::vector<float> bias_of(RankTraining& training, std::int64_t layer) {
  const std::string name = fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
  for (const ParamPiece& piece : training.model().store().value_pieces()) {
    if (piece.part->name != name) continue;
    const auto values = piece.data.host<float>();
    return {values.begin(), values.end()};
  }
  return {};
}

/// One move for each expert in a step, whatever the number of micro-batches: against the load of
/// all of them, and only in steps that change weights.
TEST(Experts, BiasesMoveOnceAStep) {
  const ModelSpec spec = biased();
  const double rate = spec.experts->bias_rate;
  for (const int microbatches : {1, 4}) {
    for (const bool recompute : {false, true}) {
      run_ranks(1, [&](World& world) {
        BatchShape batch = kBatch;
        batch.microbatches = microbatches;
        RankTraining training(spec, {{.dp = 1}, recompute}, batch, world);
        training.gradients();
        for (const float value : bias_of(training, 1)) EXPECT_EQ(value, 0.0F);
        std::vector<double> expected(6, 0.0);
        for (std::int64_t step = 1; step <= 3; ++step) {
          const StepResult result = training.run(step);
          const std::span load(result.expert_load.data(), 6);  // the first layer with experts is 1
          const double tokens = 26.0 * microbatches;
          EXPECT_EQ(std::accumulate(load.begin(), load.end(), 0.0), 2 * tokens);
          for (std::size_t e = 0; e < 6; ++e) {
            const double mean = 2 * tokens / 6;
            expected[e] += load[e] < mean ? rate : load[e] > mean ? -rate : 0.0;
          }
          const auto bias = bias_of(training, 1);
          for (std::size_t e = 0; e < 6; ++e) EXPECT_NEAR(bias[e], expected[e], 1e-6) << e;
        }
      });
    }
  }
}

/// An update that is skipped leaves biases as they were, like weights.
TEST(Experts, BiasesStayWhereAnUpdateIsSkipped) {
  run_ranks(1, [&](World& world) {
    RankTraining training(biased(), {{.dp = 1}}, kBatch, world);
    training.model().store().parameters()[0]->value.host<float>()[0] = std::nanf("");
    for (float& value : training.model().store().parameters()[0]->value.host<float>()) {
      value = std::nanf("");
    }
    EXPECT_FALSE(training.run(1).is_finite);
    for (const float value : bias_of(training, 1)) EXPECT_EQ(value, 0.0F);
  });
}

/// A move has nothing of the learning rate or of weight decay.
TEST(Experts, BiasesHaveNoGradient) {
  run_ranks(1, [&](World& world) {
    RankTraining training(biased(), {{.dp = 1}}, kBatch, world);
    training.gradients();
    int biases = 0;
    for (const ParamPiece& piece : training.model().store().grad_pieces()) {
      if (!piece.part->name.ends_with("e_score_correction_bias")) continue;
      ++biases;
      for (const float value : piece.data.host<float>()) EXPECT_EQ(value, 0.0F);
    }
    EXPECT_EQ(biases, 3);
  });
}

constexpr Balance kBalances[] = {Balance::choices, Balance::first_choices, Balance::shares,
                                 Balance::sequence, Balance::global};

/// With losses of the router that are a good part of every gradient.
ModelSpec balanced(Balance balance) {
  ModelSpec spec = deep("mixtral");
  spec.experts->loss = {.balance = 1.0, .z = 0.1};
  spec.experts->gating.balance = balance;
  return spec;
}

/// Gradients in double precision of a step behind another, whose load `global` goes by.
struct Exact {
  std::unique_ptr<WholeTensors> gradients = std::make_unique<WholeTensors>();
  std::vector<double> load;
};
Exact exact(const ModelSpec& spec, const ParallelRequest& request, bool recompute = false) {
  MeshCase mesh{request, recompute};
  mesh.dtype = DType::f64;
  BatchShape batch = kBatch;
  batch.microbatches = static_cast<int>(4 / request.dp);
  Exact made;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch, world);
    training.gradients();
    const StepResult result = training.gradients();
    made.gradients->gather(training.model().store().grad_pieces(), world);
    if (world.rank() == 0) made.load = result.expert_load;
  });
  return made;
}

/// Every loss of a router is the same on every mesh, also where shares of tokens are uneven (13
/// over cp 2 and 3, 26 over tp 4), and so are counts: in double precision, since in single
/// precision tp and cp change the logits by rounding. A wrong factor would show, because the losses
/// make more than a hundredth of gradients.
TEST(Experts, AreBalancedAlikeOnEveryMesh) {
  const std::vector<MeshCase> some = {
      {{.dp = 2, .zero = 1}},
      {{.dp = 4, .zero = 3}, true},
      {{.dp = 1, .tp = 2}},
      {{.dp = 1, .tp = 2, .sequence = true}, true},
      {{.dp = 1, .pp = 2}},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring}},
      {{.dp = 1, .cp = 3, .context = ContextMethod::gather, .ep = 3}},
      {{.dp = 2, .ep = 2, .zero = 2}, true},
      {{.dp = 1, .tp = 2, .ep = 2, .sequence = true}},
      {{.dp = 1, .tp = 4, .ep = 2, .etp = 2}},
      {{.dp = 2, .tp = 2, .cp = 2, .context = ContextMethod::ulysses, .ep = 2}}};
  for (const Balance balance : kBalances) {
    const ModelSpec spec = balanced(balance);
    const Exact one = exact(spec, {.dp = 1});
    for (const ops::RouterLoss& less : {ops::RouterLoss{.z = 0.1}, {.balance = 1.0}}) {
      ModelSpec without = spec;
      without.experts->loss = less;
      EXPECT_GT(exact(without, {.dp = 1}).gradients->largest_relative_difference(*one.gradients),
                1e-2);
    }
    for (const MeshCase& mesh : some) {
      ASSERT_TRUE(problems_of(spec, mesh.request, mesh.ranks()).empty());
      SCOPED_TRACE(name_of(mesh));
      const Exact made = exact(spec, mesh.request, mesh.recompute);
      EXPECT_EQ(made.load, one.load);
      EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-9);
    }
  }
}

/// How a step is cut into micro-batches is part of the definition of three losses of balance, and
/// of no other loss: those of sequences, of the step before, and of logits do not see it.
TEST(Experts, AreBalancedAlikeInAllMicroBatchesWhereTheLossIsNotOfThem) {
  const auto gradients_of = [](const ModelSpec& spec, std::int64_t sequences) {
    Exact made;
    run_ranks(1, [&](World& world) {
      MeshCase mesh{{.dp = 1}};
      mesh.dtype = DType::f64;
      RankTraining training(spec, mesh, kBatch, world);
      Memory& memory = training.memory();
      const auto numbers = [&](std::uint64_t key) {
        const Tensor all = memory.alloc({4, kBatch.seq_len}, DType::i32, MemoryTag::data);
        std::uint64_t i = 0;
        for (std::int32_t& id : all.host<std::int32_t>()) {
          id = static_cast<std::int32_t>(random_u64(key, i++) % 50);
        }
        return all;
      };
      const Tensor ids = numbers(1), targets = numbers(2);
      std::vector<MicroBatch> batches;
      for (std::int64_t at = 0; at < 4; at += sequences) {
        batches.push_back(plain_batch(ids.slice(0, at, at + sequences),
                                      targets.slice(0, at, at + sequences), 0, memory));
      }
      training.step().gradients(batches);
      made.load = training.step().gradients(batches).expert_load;
      made.gradients->gather(training.model().store().grad_pieces(), world);
    });
    return made;
  };
  const auto difference = [&](const ModelSpec& spec, std::int64_t sequences) {
    const Exact whole = gradients_of(spec, 4), parts = gradients_of(spec, sequences);
    EXPECT_EQ(parts.load, whole.load);
    return parts.gradients->largest_relative_difference(*whole.gradients);
  };
  for (const std::int64_t sequences : {1, 2}) {
    for (const Balance balance : kBalances) {
      const bool is_of_microbatches = balance != Balance::sequence && balance != Balance::global;
      const double found = difference(balanced(balance), sequences);
      if (is_of_microbatches) {
        EXPECT_GT(found, 1e-4);
      } else {
        EXPECT_LT(found, 1e-9);
      }
    }
    ModelSpec of_logits = balanced(Balance::choices);
    of_logits.experts->loss = {.z = 0.1};
    EXPECT_LT(difference(of_logits, sequences), 1e-9);
  }
}

/// What losses of routers add to gradients, with some targets of the step ignored.
std::map<std::string, std::vector<double>> of_routers(const ParallelRequest& request,
                                                      const std::function<bool(int)>& ignores) {
  const auto gradients_of = [&](const ModelSpec& spec) {
    MeshCase mesh{request};
    mesh.dtype = DType::f64;
    BatchShape batch = kBatch;
    batch.microbatches = static_cast<int>(2 / request.dp);
    auto made = std::make_unique<WholeTensors>();
    run_ranks(mesh.ranks(), [&](World& world) {
      RankTraining training(spec, mesh, batch, world);
      for (const MicroBatch& one : training.batches()) {
        int i = 0;
        for (std::int32_t& target : one.targets.host<std::int32_t>()) {
          target = ignores(i++) ? ops::kIgnoreTarget : 1;
        }
      }
      training.gradients();
      made->gather(training.model().store().grad_pieces(), world);
    });
    return made;
  };
  ModelSpec spec = balanced(Balance::choices);
  auto added = gradients_of(spec)->by_name();
  spec.experts->loss = {};
  const auto without = gradients_of(spec);
  for (auto& [name, values] : added) {
    const auto& less = without->by_name().at(name);
    std::ranges::transform(values, less, values.begin(), std::minus());
  }
  return added;
}

/// A token counts in them whether it is a target or not: a step of conversations has few targets,
/// and may have none.
TEST(Experts, AreBalancedAlikeWhereFewTokensAreTargets) {
  const auto all = of_routers({.dp = 1}, [](int) { return false; });
  for (const ParallelRequest& request :
       {ParallelRequest{.dp = 1}, ParallelRequest{.dp = 2, .zero = 1},
        ParallelRequest{.dp = 1, .cp = 2, .context = ContextMethod::ring},
        ParallelRequest{.dp = 2, .tp = 2, .ep = 2, .sequence = true}}) {
    for (const int period : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(MeshCase{request}), period));
      for (const auto& [name, found] :
           of_routers(request, [&](int i) { return i % period == 0; })) {
        const auto& expected = all.at(name);
        double apart = 0.0, norm = 0.0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          apart += std::pow(found[i] - expected[i], 2);
          norm += std::pow(expected[i], 2);
        }
        EXPECT_LE(std::sqrt(apart), 1e-9 * std::sqrt(norm)) << name;
      }
    }
  }
}

/// What is drawn for a token does not depend on who has it.
TEST(Experts, AreDrawnAlikeOnEveryMesh) {
  for (const ops::Noise noise : {ops::Noise::gaussian, ops::Noise::gumbel}) {
    ModelSpec spec = deep("mixtral");
    const Outcome plain = train(spec, {.dp = 1});
    spec.experts->gating.noise = noise;
    spec.experts->gating.noise_scale = 2.0;
    const Outcome one = train(spec, {.dp = 1});
    EXPECT_NE(one.first_load, plain.first_load);
    for (const MeshCase& mesh : {MeshCase{{.dp = 2, .zero = 1}}, MeshCase{{.dp = 1, .tp = 2}, true},
                                 MeshCase{{.dp = 1, .cp = 2, .context = ContextMethod::ring}},
                                 MeshCase{{.dp = 2, .tp = 2, .ep = 2, .sequence = true}}}) {
      SCOPED_TRACE(name_of(mesh));
      const Outcome made = train(spec, mesh.request, mesh.recompute);
      EXPECT_EQ(made.first_load, one.first_load);
      EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    }
  }
}

/// Capacities, plans and choosing experts work on what a rank routes: every mesh trains, counts
/// what it drops, is planned as it runs and recomputes the same bits.
TEST(Experts, OfEveryGateTrainAndArePlanned) {
  std::vector<ModelSpec> gates;
  for (const ops::Victims victims :
       {ops::Victims::late_slots, ops::Victims::unsure, ops::Victims::random}) {
    for (const bool renormalizes : {false, true}) {
      ModelSpec spec = deep("mixtral");
      spec.experts->gating.capacity = {
          .factor = 0.7, .victims = victims, .renormalizes = renormalizes};
      gates.push_back(spec);
    }
  }
  for (const char* method : {"sinkhorn", "expert_choice"}) {
    gates.push_back(
        deep("heddle_moe",
             {{"topk_method", method}, {"scoring_func", "softmax"}, {"norm_topk_prob", false}}));
  }
  for (const ModelSpec& spec : gates) {
    const Outcome one = train(spec, {.dp = 1}), again = train(spec, {.dp = 1}, true);
    EXPECT_EQ(again.gradients->first_difference(*one.gradients), "");
    EXPECT_LT(one.losses[2], one.losses[0]);
    for (const MeshCase& mesh :
         {MeshCase{{.dp = 2, .ep = 2, .zero = 2}}, MeshCase{{.dp = 1, .tp = 2}},
          MeshCase{{.dp = 1, .cp = 2, .context = ContextMethod::ring}}}) {
      run_ranks(mesh.ranks(), [&](World& world) {
        RankTraining training(spec, mesh, kBatch, world);
        const StepResult result = training.run(1);
        EXPECT_TRUE(result.is_finite);
        const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh, kBatch),
                                        training.plan(), world.rank(), kBatch);
        if (mesh.request.ep == 1) {
          EXPECT_EQ(training.memory().stats().peak, plan.memory.peak);
        }
      });
    }
  }
}

/// Bytes of an executed step against those of its plan, all ranks together: who receives how many
/// rows is up to the tokens.
void expect_planned_bytes(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  std::mutex one_at_a_time;
  std::map<std::pair<std::string, std::size_t>, std::pair<std::int64_t, std::int64_t>> bytes;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch, world);
    training.run(1);
    const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh, batch), training.plan(),
                                    world.rank(), batch);
    MeshTraffic traffic = training.mesh().traffic(), planned = plan.traffic;
    const std::lock_guard lock(one_at_a_time);
    traffic.with(planned, [&](const char* group, const CommCounts& sent, const CommCounts& said) {
      for (std::size_t op = 0; op < kCommOps; ++op) {
        auto& [counted, expected] = bytes[{group, op}];
        counted += sent.by_op[op].wire_bytes;
        expected += said.by_op[op].wire_bytes;
        EXPECT_EQ(sent.by_op[op].calls, said.by_op[op].calls) << group;
      }
    });
  });
  std::int64_t all = 0;
  for (const auto& [call, pair] : bytes) {
    EXPECT_EQ(pair.first, pair.second) << call.first;
    all += pair.first;
  }
  EXPECT_GT(all, 0);
}

/// What `plan` finds for a small model, as it is and as the best of the plans that divide experts.
TEST(Experts, SendWhatTheSearchedPlanSays) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const ModelSpec spec = deep("mixtral", {{"num_experts", 8}});
  const planner::Job job{
      .spec = spec, .seq_len = 16, .batch = 16, .stack = planner::Stack::heddle(DType::f32)};
  for (const int ranks : {4, 8}) {
    const auto found = planner::search(machine, job, {.gpus = ranks, .keep = 4096}).best;
    ASSERT_FALSE(found.empty());
    const auto divided = std::ranges::find_if(
        found, [](const planner::Found& one) { return one.candidate.divides_experts(); });
    ASSERT_NE(divided, found.end());
    for (const planner::Candidate& plan : {found.front().candidate, divided->candidate}) {
      SCOPED_TRACE(name_of(MeshCase{plan}));
      expect_planned_bytes(spec, {plan, plan.recompute == planner::Recompute::full},
                           {.sequences = plan.sequences,
                            .seq_len = job.seq_len,
                            .microbatches = static_cast<int>(plan.microbatches(job))});
    }
  }
}

TEST(Experts, AreSearchedAndSimulated) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for (const ModelSpec& spec : models()) {
    planner::Stack stack = planner::Stack::heddle(DType::f32);
    const planner::Job job{.spec = spec, .seq_len = 16, .batch = 64, .stack = stack};
    const auto found = planner::search(machine, job, {.gpus = 8, .threads = 1});
    ASSERT_FALSE(found.best.empty());
    const auto step = planner::simulate_step(machine, job, {{.dp = 4, .pp = 2, .zero = 1}});
    EXPECT_GT(step.seconds, 0.0);
  }
}

}  // namespace
}  // namespace heddle
