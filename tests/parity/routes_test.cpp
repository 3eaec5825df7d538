// Micro-batches that skip and swap stages, against one process that runs for each of them the
// layers of its route, one after the other.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "comm/threads/thread_world.h"
#include "ops/reduce.h"
#include "ops/softmax_xent.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 7};

struct Gradients {
  std::uint64_t loss = 0;  // bits
  WholeTensors tensors;
};

/// Of a pipeline.
std::unique_ptr<Gradients> in_pipeline(const ModelSpec& spec, const ParallelRequest& request,
                                       const BatchShape& batch = kBatch) {
  auto made = std::make_unique<Gradients>();
  run_ranks(static_cast<int>(request.ranks()), [&](World& world) {
    RankTraining training(spec, MeshCase{request}, batch, world);
    const StepResult result = training.gradients();
    made->tensors.gather(training.model().store().grad_pieces(), world);
    if (world.rank() == 0) made->loss = std::bit_cast<std::uint64_t>(result.loss);
  });
  return made;
}

/// The units of a whole model in the order in which a micro-batch goes through them.
std::vector<int> units_on_the_way(const Model& model, const std::vector<int>& blocks) {
  std::vector<int> before, behind, by_block(static_cast<std::size_t>(model.spec().layers));
  bool are_behind = false;
  for (int unit = 0; unit < static_cast<int>(model.units().units.size()); ++unit) {
    const int block = model.units().units[static_cast<std::size_t>(unit)].block;
    are_behind = are_behind || block >= 0;
    if (block >= 0) {
      by_block[static_cast<std::size_t>(block)] = unit;
    } else {
      (are_behind ? behind : before).push_back(unit);
    }
  }
  std::vector<int> order = before;
  for (const int block : blocks) order.push_back(by_block[static_cast<std::size_t>(block)]);
  order.insert(order.end(), behind.begin(), behind.end());
  return order;
}

/// Of one process. `blocks` of micro-batches, which take them in turn.
std::unique_ptr<Gradients> in_one_process(const ModelSpec& spec,
                                          const std::vector<std::vector<int>>& blocks) {
  auto made = std::make_unique<Gradients>();
  run_ranks(1, [&](World& world) {
    RankTraining training(spec, MeshCase{{.dp = 1}}, kBatch, world);
    Model& model = training.model();
    Stream stream(1);
    const Tensor total = training.memory().zeros({1}, DType::f64, MemoryTag::workspace);
    std::int64_t targets = 0;
    for (const MicroBatch& batch : training.batches()) {
      targets += std::ranges::count_if(batch.targets.host<std::int32_t>(),
                                       [](auto id) { return id != ops::kIgnoreTarget; });
    }
    model.store().retire_grads();
    for (std::size_t mb = 0; mb < training.batches().size(); ++mb) {
      Ctx ctx{.stream = stream,
              .memory = training.memory(),
              .batch = training.batches()[mb],
              .keep = Keep::all,
              .loss_scale = 1.0 / static_cast<double>(targets),
              .step = 1};
      const std::vector<int> order = units_on_the_way(model, blocks[mb % blocks.size()]);
      Saved saved;
      Tensor x;
      for (const int unit : order) x = model.unit(unit).forward(x, saved.child(unit), ctx);
      ops::add_sum(x, total, stream);
      Tensor dx;
      for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
        dx = model.unit(*unit).backward(dx, saved.child(*unit), ctx);
      }
    }
    for (const Parameter* parameter : model.store().parameters()) {
      const_cast<Parameter*>(parameter)->clear_stale_grad(stream);
    }
    made->tensors.gather(model.store().grad_pieces(), world);
    made->loss =
        std::bit_cast<std::uint64_t>(total.host<double>()[0] / static_cast<double>(targets));
  });
  return made;
}

void expect_same(const Gradients& made, const Gradients& expected, const std::string& what) {
  EXPECT_EQ(made.loss, expected.loss) << what;
  EXPECT_EQ(made.tensors.first_difference(expected.tensors), "") << what;
}

/// A tied table's two ends are summed apart in a pipeline, and in turn in one process.
void expect_same_but_for_ties(const Gradients& made, const Gradients& expected) {
  EXPECT_EQ(made.loss, expected.loss);
  EXPECT_LT(made.tensors.largest_relative_difference(expected.tensors), 1e-6);
  std::string differ;
  for (const auto& [name, values] : made.tensors.by_name()) {
    if (values != expected.tensors.by_name().at(name)) differ += name + " ";
  }
  EXPECT_TRUE(differ == "model.embed_tokens.weight " || differ == "transformer.wte.weight ")
      << differ;
}

struct RouteCase {
  const char* model;
  int layers, pp;
  double skip;
  const char* routes;
  std::vector<std::vector<int>> blocks;  ///< of micro-batches, in turn
};

void PrintTo(const RouteCase& c, std::ostream* out) {
  *out << c.model << " pp " << c.pp << " skip " << c.skip << " " << c.routes;
}

class Routes : public testing::TestWithParam<RouteCase> {};

TEST_P(Routes, GiveTheBitsOfOneProcessThatRunsTheirLayers) {
  const RouteCase& c = GetParam();
  ModelSpec spec = deep_spec(c.model, c.layers);
  const ParallelRequest request{
      .dp = 1, .pp = c.pp, .schedule = Pipeline::routes, .skip = c.skip, .routes = c.routes};
  if (spec.tied_embeddings) {
    expect_same_but_for_ties(*in_pipeline(spec, request), *in_one_process(spec, c.blocks));
    spec.tied_embeddings = false;
  }
  expect_same(*in_pipeline(spec, request), *in_one_process(spec, c.blocks), "");
}

INSTANTIATE_TEST_SUITE_P(
    Parity, Routes,
    testing::Values(
        // A third skipped, on three ranks and on six.
        RouteCase{"llama", 4, 3, 0.33, "", {{2, 3}, {0, 1}}},
        RouteCase{"qwen2", 5, 3, 0.33, "", {{0, 3, 4}, {0, 1, 2}}},
        RouteCase{"llama",
                  6,
                  6,
                  0.33,
                  "",
                  {{0, 2, 4, 5}, {0, 1, 3, 5}, {0, 1, 2, 4}, {0, 2, 3, 5}, {0, 1, 3, 4}}},
        // CheckFree+: the first rank has embedding and head only.
        RouteCase{"qwen3", 4, 5, 0.0, "swap", {{0, 1, 2, 3}, {1, 0, 3, 2}}},
        RouteCase{"gpt2", 4, 3, 0.0, "swap", {{0, 1, 2, 3}, {2, 3, 0, 1}}},
        // Both.
        RouteCase{"qwen2", 3, 4, 0.0, "0-2-1 0-1-3 0-3-2", {{1, 0}, {0, 2}, {2, 1}}}));

TEST(RoutesOfAllStages, GiveTheBitsOfOneFOneB) {
  for (const char* model : {"llama", "qwen2"}) {
    const ModelSpec spec = deep_spec(model, 6);
    for (const int pp : {2, 4, 6}) {
      expect_same(*in_pipeline(spec, {.dp = 1, .pp = pp, .schedule = Pipeline::routes}),
                  *in_pipeline(spec, {.dp = 1, .pp = pp, .schedule = Pipeline::one_f_one_b}),
                  fmt::format("{} pp {}", model, pp));
    }
  }
}

TEST(RoutesOfReplicas, AreSummedAsOneReplicaComputesThem) {
  // Two replicas of three micro-batches each, of which ranks see the same routes: a replica's sums
  // are those of one pipeline with its micro-batches.
  const ModelSpec spec = deep_spec("llama", 4);
  ParallelRequest request{.dp = 2, .pp = 3, .schedule = Pipeline::routes, .skip = 0.33};
  const BatchShape batch{.sequences = 2, .seq_len = 13, .microbatches = 4};
  const auto plain = in_pipeline(spec, request, batch);
  request.zero = 1;
  expect_same(*in_pipeline(spec, request, batch), *plain, "ZeRO 1");
  // Over ranks first.
  request.zero = 2;
  const auto divided = in_pipeline(spec, request, batch);
  EXPECT_LT(divided->tensors.largest_relative_difference(plain->tensors), 1e-6);
  request.zero = 3;
  expect_same(*in_pipeline(spec, request, batch), *divided, "ZeRO 2 and 3");
  // All micro-batches in one pipeline: as many of each route.
  const auto one = in_pipeline(spec, {.dp = 1, .pp = 3, .schedule = Pipeline::routes, .skip = 0.33},
                               {.sequences = 2, .seq_len = 13, .microbatches = 8});
  EXPECT_LT(plain->tensors.largest_relative_difference(one->tensors), 1e-6);
}

TEST(RoutesWithTensorParallelism, GiveTheGradientsOfOneRank) {
  const ModelSpec spec = deep_spec("llama", 4);
  const auto expected = in_one_process(spec, {{2, 3}, {0, 1}});
  const auto made = in_pipeline(
      spec,
      {.dp = 1, .tp = 2, .pp = 3, .sequence = true, .schedule = Pipeline::routes, .skip = 0.33});
  EXPECT_LT(made->tensors.largest_relative_difference(expected->tensors), 1e-5);
}

TEST(RoutesWithFewMicroBatches, GiveUnvisitedStagesNoGradient) {
  // Rank 1's blocks are skipped by the only micro-batch.
  const ModelSpec spec = deep_spec("llama", 4);
  const BatchShape one{.sequences = 2, .seq_len = 13, .microbatches = 1};
  for (const int zero : {0, 1, 2, 3}) {
    const auto made = in_pipeline(
        spec, {.dp = 2, .pp = 3, .zero = zero, .schedule = Pipeline::routes, .skip = 0.33}, one);
    for (const auto& [name, values] : made->tensors.by_name()) {
      const bool is_skipped = name.find("layers.0.") != std::string::npos ||
                              name.find("layers.1.") != std::string::npos;
      const bool is_zero = std::ranges::all_of(values, [](double value) { return value == 0.0; });
      EXPECT_EQ(is_zero, is_skipped) << name << " with ZeRO " << zero;
    }
  }
}

}  // namespace
}  // namespace heddle
