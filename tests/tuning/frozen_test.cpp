// What is frozen stays as it is, and costs neither gradients, nor states, nor exchanges.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "engine/memory_plan.h"
#include "engine/train_step.h"
#include "model/registry.h"
#include "optim/optimizer.h"
#include "tuning/tuned_model.h"

namespace heddle {
namespace {

ModelSpec tuned_spec(const Tuning& tuning) {
  ModelSpec spec = read_model_spec(small_llama() / "config.json");
  spec.tuning = tuning;
  return spec;
}

const Tuning kAdapters{.lora = LoraSpec{.rank = 4, .alpha = 8.0}, .freeze = {}};
const Tuning kFrozen{.lora = {}, .freeze = {"model.embed_tokens.weight", "model.layers.1.*"}};

bool is_trained(const Tuning& tuning, const std::string& name) {
  if (tuning.lora) return adapted_module(name).has_value();
  return name != "model.embed_tokens.weight" && !name.starts_with("model.layers.1.");
}

/// A model of random weights on a rank, with what a step needs.
struct TunedRank {
  TunedRank(const Tuning& tuning, const ParallelRequest& request, World& world)
      : spec(tuned_spec(tuning)),
        plan(make_plan(spec, request, world.size(), 16)),
        mesh(plan.mesh, world.all()),
        model(spec, {.positions = 16}, plan, mesh, ParamStore::Purpose::training, memory),
        optimizer(make_optimizer(AdamWConfig{}, model.store())),
        step(model, *optimizer, stream, memory) {
    initialize(model.store(), 3, stream);
  }

  MicroBatch batch() {
    const auto ids = [&](std::int32_t factor) {
      const Tensor made = memory.alloc({1, 16}, DType::i32, MemoryTag::data);
      std::int32_t i = 0;
      for (std::int32_t& id : made.host<std::int32_t>()) id = (factor * ++i) % 53;
      return made;
    };
    return plain_batch(ids(7), ids(11), 0, memory);
  }

  std::map<std::string, std::vector<float>> values() const {
    std::map<std::string, std::vector<float>> all;
    for (const ParamPiece& piece : model.store().value_pieces()) {
      auto& own = all[piece.part->name];
      for (std::int64_t row = 0; row < piece.data.size(0); ++row) {
        const Tensor part = piece.data.dims() == 1 ? piece.data : piece.data.select(0, row);
        own.insert(own.end(), part.host<float>().begin(), part.host<float>().end());
        if (piece.data.dims() == 1) break;
      }
    }
    return all;
  }

  Memory memory;
  Stream stream{1};
  const ModelSpec spec;
  const ParallelPlan plan;
  const Mesh mesh;
  Model model;
  const std::unique_ptr<Optimizer> optimizer;
  TrainStep step;
};

class Frozen : public testing::TestWithParam<std::pair<Tuning, int>> {
 protected:
  const Tuning& tuning() const { return GetParam().first; }
  ParallelRequest request() const { return {.dp = 2, .zero = GetParam().second}; }
};

TEST_P(Frozen, StaysBitForBitWhileTheRestLearns) {
  run_ranks(2, [&](World& world) {
    TunedRank rank(tuning(), request(), world);
    const auto before = rank.values();
    for (int i = 0; i < 3; ++i) {
      const std::vector<MicroBatch> batches = {rank.batch()};
      rank.step.run(batches, {.lr = 1e-2, .step = i + 1}, 1.0);
    }
    for (const auto& [name, values] : rank.values()) {
      if (is_trained(tuning(), name)) {
        EXPECT_NE(values, before.at(name)) << name;
      } else {
        EXPECT_EQ(values, before.at(name)) << name;
      }
    }
  });
}

TEST_P(Frozen, HasNeitherGradientsNorStates) {
  run_ranks(2, [&](World& world) {
    const TunedRank rank(tuning(), request(), world);
    const ParamStore& store = rank.model.store();
    for (const ParamPiece& piece : store.grad_pieces()) {
      EXPECT_TRUE(is_trained(tuning(), piece.part->name)) << piece.part->name;
    }
    for (std::size_t i = 0; i < store.states().size(); ++i) {
      for (const ParamPiece& piece : store.state_pieces(i)) {
        EXPECT_TRUE(is_trained(tuning(), piece.part->name)) << piece.part->name;
      }
    }
    std::int64_t trained = 0;
    for (const auto& bucket : rank.model.units().buckets)
      trained += bucket.trains ? bucket.held : 0;
    std::int64_t optimized = 0;
    for (const OptShard& shard : store.shards()) optimized += shard.value.count();
    EXPECT_EQ(optimized, trained);
    EXPECT_LT(10 * trained, 6 * store.parameter_count());
  });
}

TEST_P(Frozen, IsNotExchanged) {
  run_ranks(2, [&](World& world) {
    const TunedRank rank(tuning(), request(), world);
    const RankUnits& units = rank.model.units();
    std::set<StepOp::Kind> of_trained;
    const Schedule schedule = step_schedule(rank.plan, 2);
    tell_step(schedule, 0, units, rank.plan.policy, [&](const StepOp& op) {
      using Kind = StepOp::Kind;
      const bool is_of_gradients = op.kind == Kind::open || op.kind == Kind::reduce ||
                                   op.kind == Kind::reduced || op.kind == Kind::rest ||
                                   op.kind == Kind::gather;
      if (!is_of_gradients) return;
      EXPECT_TRUE(units.buckets[static_cast<std::size_t>(op.what)].trains);
      of_trained.insert(op.kind);
    });
    EXPECT_TRUE(of_trained.contains(StepOp::Kind::reduce));
  });
}

INSTANTIATE_TEST_SUITE_P(Zero, Frozen,
                         testing::Values(std::pair(kAdapters, 0), std::pair(kAdapters, 1),
                                         std::pair(kAdapters, 2), std::pair(kAdapters, 3),
                                         std::pair(kFrozen, 0), std::pair(kFrozen, 1),
                                         std::pair(kFrozen, 2), std::pair(kFrozen, 3)),
                         [](const auto& info) {
                           return (info.param.first.lora ? "Adapters" : "Pattern") +
                                  std::to_string(info.param.second);
                         });

TEST(Adapters, StartAsPeftStartsThem) {
  run_ranks(1, [&](World& world) {
    const TunedRank rank(kAdapters, {.dp = 1}, world);
    for (const auto& [name, values] : rank.values()) {
      if (!adapted_module(name)) continue;
      if (name.ends_with("lora_B.weight")) {
        for (const float value : values) EXPECT_EQ(value, 0.0F) << name;
        continue;
      }
      // Uniform within 1 / sqrt(inputs), of which there are 16, or 24 before down_proj.
      const double bound = 1.0 / std::sqrt(name.find("down_proj") == std::string::npos ? 16 : 24);
      double largest = 0.0, squares = 0.0;
      for (const float value : values) {
        largest = std::max(largest, std::abs(static_cast<double>(value)));
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      EXPECT_LE(largest, bound) << name;
      EXPECT_GT(largest, 0.8 * bound) << name;
      EXPECT_NEAR(squares / static_cast<double>(values.size()), bound * bound / 3.0,
                  0.5 * bound * bound / 3.0)
          << name;
    }
  });
}

/// Values, gradients and states of a rank, planned dry and in memory.
TEST_P(Frozen, IsPlannedToTheByte) {
  run_ranks(2, [&](World& world) {
    TunedRank rank(tuning(), request(), world);
    const std::vector<MicroBatch> batches = {rank.batch()};
    rank.step.run(batches, {.lr = 1e-2, .step = 1}, 1.0);
    const StepPlan plan =
        plan_step(rank.spec, {.positions = 16}, rank.plan, world.rank(),
                  {.sequences = 1, .seq_len = 16, .microbatches = 1}, {.optimizer = AdamWConfig{}});
    for (const MemoryTag tag :
         {MemoryTag::parameters, MemoryTag::gradients, MemoryTag::optimizer}) {
      const auto at = static_cast<std::size_t>(tag);
      EXPECT_EQ(rank.memory.stats().live[at], plan.before_step[at]) << name_of(tag);
    }
  });
}

}  // namespace
}  // namespace heddle
