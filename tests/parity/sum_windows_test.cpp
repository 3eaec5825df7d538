// Sums of gradients that are cut and begin where experts leave the network idle: the same bits, the
// same bytes, in other calls, executed as planned and simulated.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "comm/threads/thread_world.h"
#include "model/config_testing.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"
#include "planner/simulated_step.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 2};
constexpr std::int64_t kLayers = 4;

ModelSpec spec() {
  return spec_of(with(small_config("mixtral"), {{"num_hidden_layers", kLayers},
                                                {"num_attention_heads", 4},
                                                {"num_key_value_heads", 2},
                                                {"num_experts", 4},
                                                {"hidden_size", 32}}));
}

/// Slices that end within parameters, and some of nothing.
const SumWindows kWindows = {{1333, 100}, {1111, 0}, {0, 2222}, {333, 4444}};

StepPolicy policy(const SumWindows& windows) {
  StepPolicy policy;
  policy.windows = windows;
  return policy;
}

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> all = {
      {{.dp = 2, .ep = 2, .zero = 0}},
      {{.dp = 2, .ep = 2, .zero = 1}},
      {{.dp = 4, .ep = 2, .zero = 0}},
      {{.dp = 4, .ep = 2, .zero = 1}, true},
      {{.dp = 5, .etp = 5, .ep_exchange = "degree=2", .zero = 1}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "degree=2/4", .zero = 0}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "degree=4/2 networks=1", .zero = 1}},
      {{.dp = 8, .ep = 2, .etp = 2, .ep_exchange = "degree=1/3 2dh=2", .zero = 1}},
      {{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "r=1 degree=2", .zero = 0}},
      {{.dp = 2, .tp = 2, .ep = 2, .etp = 2, .ep_exchange = "degree=2", .zero = 1}},
      {{.dp = 2, .cp = 2, .context = ContextMethod::ring, .ep = 4, .zero = 0}},
      {{.dp = 2, .pp = 2, .ep = 2, .ep_exchange = "degree=2", .zero = 1}},
      {{.dp = 2, .pp = 2, .ep = 2, .zero = 0, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 2, .pp = 2, .ep = 2, .zero = 1, .schedule = Pipeline::zb_v}}};
  return all;
}

/// Sums of gradients that a rank counts, on all axes and groups.
struct Sums {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const Sums&) const = default;
};

Sums sums_in(const MeshTraffic& traffic, const ParallelRequest& request) {
  const CommOp op = request.zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter;
  Sums sums;
  const auto add = [&](const CommCounts& counts) {
    const auto& entry = counts.by_op[static_cast<std::size_t>(op)];
    sums.calls += entry.calls;
    sums.bytes += entry.payload_bytes;
  };
  add(traffic.on(Axis::dp));
  add(traffic.on(Axis::edp));
  add(traffic.groups);
  return sums;
}

struct Trained {
  std::vector<double> losses, norms;
  WholeTensors weights;
  std::vector<Sums> sums = {}, planned = {};  ///< of a step, by rank
};

std::unique_ptr<Trained> train(const ModelSpec& spec, const MeshCase& mesh,
                               const SumWindows& windows) {
  auto made = std::make_unique<Trained>();
  const auto ranks = static_cast<std::size_t>(mesh.ranks());
  made->sums.resize(ranks);
  made->planned.resize(ranks);
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, kBatch, world, {}, policy(windows));
    const auto own = static_cast<std::size_t>(world.rank());
    for (int step = 1; step <= 3; ++step) {
      const StepResult result = training.run(step);
      if (step == 1) made->sums[own] = sums_in(training.mesh().traffic(), mesh.request);
      if (world.rank() > 0) continue;
      made->losses.push_back(result.loss);
      made->norms.push_back(result.grad_norm);
    }
    made->weights.gather(training.model().store().value_pieces(), world);
    made->planned[own] = sums_in(plan_step(spec, RankTraining::build_options(mesh, kBatch),
                                           training.plan(), world.rank(), kBatch)
                                     .traffic,
                                 mesh.request);
  });
  return made;
}

class SumWindowsOn : public testing::TestWithParam<std::size_t> {};

TEST_P(SumWindowsOn, ChangeNoBitAndNoByteOnlyCalls) {
  const MeshCase& mesh = meshes()[GetParam()];
  const auto usual = train(spec(), mesh, {}), cut = train(spec(), mesh, kWindows);
  EXPECT_EQ(cut->losses, usual->losses);
  EXPECT_EQ(cut->norms, usual->norms);
  EXPECT_EQ(cut->weights.largest_relative_difference(usual->weights), 0.0);
  for (std::size_t rank = 0; rank < usual->sums.size(); ++rank) {
    EXPECT_EQ(cut->sums[rank], cut->planned[rank]) << rank;
    EXPECT_EQ(cut->sums[rank].bytes, usual->sums[rank].bytes) << rank;
    EXPECT_GT(cut->sums[rank].calls, usual->sums[rank].calls) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, SumWindowsOn, testing::Range(std::size_t{0}, meshes().size()),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.param, name_of(meshes()[info.param]));
                         });

/// What they do not concern stays: whole gradients that are not kept are summed at once.
TEST(SumWindows, LeaveGradientsThatAreGivenBackAlone) {
  const MeshCase mesh{{.dp = 2, .ep = 2, .zero = 2}};
  const auto usual = train(spec(), mesh, {}), cut = train(spec(), mesh, kWindows);
  EXPECT_EQ(cut->losses, usual->losses);
  EXPECT_EQ(cut->sums, usual->sums);
}

/// Blocks without experts have none of their own; slices go as for others.
TEST(SumWindows, AreOfBlocksWithoutExpertsToo) {
  const ModelSpec mixed = spec_of(
      with(small_config("qwen3_moe"),
           {{"num_hidden_layers", kLayers}, {"decoder_sparse_step", 2}, {"num_experts", 4}}));
  const MeshCase mesh{{.dp = 2, .ep = 2, .ep_exchange = "degree=2", .zero = 1}};
  const auto usual = train(mixed, mesh, {}), cut = train(mixed, mesh, kWindows);
  EXPECT_EQ(cut->losses, usual->losses);
  EXPECT_EQ(cut->weights.largest_relative_difference(usual->weights), 0.0);
  EXPECT_EQ(cut->sums, cut->planned);
}

/// Behind the last dispatch of a layer, and before its first combine: by the list of the pass, on
/// whichever threads.
TEST(SumWindows, HaveTheirPlaceBetweenTheLastDispatchAndTheFirstCombine) {
  const MeshCase mesh{{.dp = 2, .ep = 2, .ep_exchange = "degree=2", .zero = 0}};
  SumWindows windows(kLayers);
  windows[1].with_experts = 640;
  std::mutex mutex;
  std::map<std::int64_t, CommCall> calls;  // of rank 0, by number
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec(), mesh, {.sequences = 2, .seq_len = 13, .microbatches = 1}, world,
                          {}, policy(windows));
    if (world.rank() == 0) {
      world.flight().set_observer([&](const CommCall& call) {
        const std::lock_guard lock(mutex);
        if (call.tag.text() == "BW of block 1, micro-batch 0") calls[call.number] = call;
      });
    }
    training.run(1);
    world.flight().set_observer({});
  });
  // Numbers and rows of two pieces there, the slice, and both back.
  ASSERT_EQ(calls.size(), 9u);
  std::vector<CommCall> made;
  for (const auto& [number, call] : calls) made.push_back(call);
  const CommCall &last_dispatch = made[3], &sum = made[4], &first_combine = made[5];
  EXPECT_EQ(sum.op, CommOp::all_reduce);
  EXPECT_EQ(sum.shape, (Shape{640}));
  EXPECT_GE(sum.started, last_dispatch.ended);
  EXPECT_GE(first_combine.started, sum.ended);
}

Sums counted(const planner::TrafficBySize& traffic, int zero) {
  const CommOp op = zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter;
  Sums sums;
  for (const auto* sizes : {&traffic.dp, &traffic.edp}) {
    for (const auto& [calls, bytes] : sizes->by_op[static_cast<std::size_t>(op)]) {
      sums.calls += calls;
      sums.bytes += bytes;
    }
  }
  return sums;
}

class SimulatedWindows : public testing::Test {
 protected:
  const planner::Machine machine_ =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");

  planner::SimulatedStep simulated(const SumWindows& windows, int zero = 0) const {
    planner::Job job{.spec = spec(),
                     .seq_len = kBatch.seq_len,
                     .batch = 4 * kBatch.sequences * kBatch.microbatches,
                     .stack = planner::Stack::heddle(DType::f32)};
    job.windows = windows;
    const planner::Candidate candidate{
        {.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "degree=2/4", .zero = zero},
        planner::Recompute::none,
        static_cast<int>(kBatch.sequences)};
    return planner::simulate_step(machine_, job, candidate);
  }
};

TEST_F(SimulatedWindows, SendTheSameBytesInMoreCalls) {
  for (const int zero : {0, 1}) {
    const planner::SimulatedStep usual = simulated({}, zero), cut = simulated(kWindows, zero);
    const Sums now = counted(cut.messages[0], zero), before = counted(usual.messages[0], zero);
    EXPECT_EQ(now.bytes, before.bytes);
    // As they are executed.
    const MeshCase mesh{{.dp = 4, .ep = 2, .etp = 2, .ep_exchange = "degree=2/4", .zero = zero}};
    const auto executed = train(spec(), mesh, kWindows), plain = train(spec(), mesh, {});
    EXPECT_EQ(now.calls - before.calls, executed->sums[0].calls - plain->sums[0].calls);
  }
}

}  // namespace
}  // namespace heddle
