#include "engine/train_step.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "engine/engine_testing.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

/// Values and the optimizer's states of every parameter.
std::vector<std::string> state_of(Model& model) {
  std::vector<std::string> state;
  const ParamStore& store = model.store();
  const auto add = [&](const std::vector<ParamPiece>& pieces) {
    for (const ParamPiece& piece : pieces) state.push_back(bytes_of(piece.data));
  };
  add(store.value_pieces());
  for (std::size_t i = 0; i < store.states().size(); ++i) add(store.state_pieces(i));
  return state;
}

std::string bytes_of_block(const std::map<std::string, const Parameter*>& parameters, int block) {
  std::string bytes;
  for (const auto& [name, parameter] : parameters) {
    if (name.find(fmt::format("layers.{}.", block)) == std::string::npos) continue;
    bytes += bytes_of(parameter->value);
  }
  return bytes;
}

TEST(TrainStep, LowersTheLossOfABatchItSeesAgain) {
  for (const char* name : kReferenceModels) {
    Training training(name, {});
    const std::vector<MicroBatch> batches = {training.batch(2, 12, 1)};
    const double first = training.step().run(batches, {.lr = 3e-3, .step = 1}, 1.0).loss;
    double last = first;
    for (std::int64_t step = 2; step <= 15; ++step) {
      last = training.step().run(batches, {.lr = 3e-3, .step = step}, 1.0).loss;
    }
    EXPECT_NEAR(first, std::log(static_cast<double>(training.model().spec().vocab)), 0.1) << name;
    EXPECT_LT(last, first - 0.2) << name;
  }
}

TEST(TrainStep, ALossThatIsNotFiniteLeavesWeightsAndMomentsUntouched) {
  for (const float poison : {INFINITY, NAN}) {
    Training training("llama", {});
    const std::vector<MicroBatch> batches = {training.batch(1, 8, 1)};
    EXPECT_TRUE(training.step().run(batches, {.lr = 1e-3, .step = 1}, 1.0).is_finite);
    Parameter& last = *training.model().store().parameters().back();
    const float good = last.value.host<float>()[0];
    last.value.host<float>()[0] = poison;
    const auto before = state_of(training.model());
    EXPECT_FALSE(training.step().run(batches, {.lr = 1e-3, .step = 2}, 1.0).is_finite);
    EXPECT_EQ(state_of(training.model()), before);
    last.value.host<float>()[0] = good;
    EXPECT_TRUE(training.step().run(batches, {.lr = 1e-3, .step = 2}, 1.0).is_finite);
  }
}

/// A model of two layers that leaves one out learns what a model of the other layer alone learns,
/// and the one that is left out stays as it is.
TEST(TrainStep, LeavesBlocksOutForwardAndBackward) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdamWConfig()), OptimizerConfig(SgdConfig{.momentum = 0.9}),
        OptimizerConfig(MuonConfig())}) {
    for (const int left_out : {0, 1}) {
      Training both("llama", {}, optimizer);
      ModelSpec single = both.model().spec();
      ASSERT_EQ(single.layers, 2);
      single.layers = 1;
      Model one(single, {.positions = 32}, ParamStore::Purpose::training, both.memory());
      const auto of_one = make_optimizer(optimizer, one.store());
      TrainStep step(one, *of_one, both.stream(), both.memory());
      const auto name_in_both = [&](const Parameter& parameter) {
        std::string name = parameter.parts.front().name;
        if (const auto at = name.find("layers.0."); at != std::string::npos) {
          name.replace(at, 9, left_out == 0 ? "layers.1." : "layers.0.");
        }
        return name;
      };
      std::map<std::string, const Parameter*> in_both;
      for (const Parameter* p : both.model().store().parameters()) {
        in_both[p->parts.front().name] = p;
      }
      for (Parameter* p : one.store().parameters()) {
        std::ranges::copy(in_both.at(name_in_both(*p))->value.host<float>(),
                          p->value.host<float>().begin());
      }
      const auto before = bytes_of_block(in_both, left_out);
      both.model().leave_out({left_out});
      std::vector<StepArgs::OfUnit> units(both.model().units().units.size());
      for (std::size_t unit = 0; unit < units.size(); ++unit) {
        units[unit].rests = both.model().is_left_out(static_cast<int>(unit));
      }
      const std::vector<MicroBatch> batches = {both.batch(2, 12, 1), both.batch(2, 12, 2)};
      for (std::int64_t at = 1; at <= 3; ++at) {
        const StepResult a =
            both.step().run(batches, {.lr = 3e-3, .step = at, .units = units}, 1.0);
        const StepResult b = step.run(batches, {.lr = 3e-3, .step = at}, 1.0);
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
      }
      for (const Parameter* p : one.store().parameters()) {
        EXPECT_EQ(bytes_of(p->value), bytes_of(in_both.at(name_in_both(*p))->value))
            << name_in_both(*p);
      }
      EXPECT_EQ(bytes_of_block(in_both, left_out), before);
    }
  }
}

/// Of units that were made anew.
TEST(TrainStep, UnitsMayLearnFasterThanOthers) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdamWConfig()), OptimizerConfig(SgdConfig()),
        OptimizerConfig(MuonConfig())}) {
    std::vector<std::string> made;
    for (const bool by_unit : {false, true}) {
      Training training("llama", {}, optimizer);
      const std::vector<MicroBatch> batches = {training.batch(2, 12, 1)};
      StepArgs args{.lr = by_unit ? 1e-3 : 2e-3, .step = 1};
      if (by_unit) args.units.resize(training.model().units().units.size(), {.lr_factor = 2.0});
      training.step().run(batches, args, 1.0);
      std::string all;
      for (const std::string& bytes : state_of(training.model())) all += bytes;
      made.push_back(std::move(all));
    }
    EXPECT_TRUE(made[0] == made[1]);
  }
}

TEST(TrainStep, CarriesThatARankAsksForSomethingAndChangesNothingElse) {
  std::vector<std::vector<std::string>> states;
  for (const bool asks : {false, true}) {
    Training training("llama", {});
    training.step().ask([asks] { return asks; });
    const std::vector<MicroBatch> batches = {training.batch(1, 8, 1)};
    EXPECT_EQ(training.step().run(batches, {.lr = 1e-3, .step = 1}, 1.0).is_asked, asks);
    states.push_back(state_of(training.model()));
  }
  EXPECT_EQ(states[0], states[1]);
}

TEST(TrainStep, AccumulationIsABatchOfAll) {
  for (const char* name : {"gpt2", "gpt-neox", "llama", "qwen3"}) {
    Training training(name, {.dtype = DType::f64});
    MicroBatch both = training.batch(2, 9, 3);
    // Unequal counts of targets: the mean is over all of them, not a mean of means.
    for (std::size_t i = 0; i < 5; ++i) both.targets.host<std::int32_t>()[i] = ops::kIgnoreTarget;
    const std::vector<MicroBatch> together = {both};
    std::vector<MicroBatch> apart;
    for (std::int64_t row = 0; row < 2; ++row) {
      apart.push_back(plain_batch(both.ids.slice(0, row, row + 1),
                                  both.targets.slice(0, row, row + 1), 0, training.memory()));
    }
    const StepResult one = training.step().gradients(together);
    std::vector<std::vector<double>> want;
    for (const Parameter* p : training.model().store().parameters()) {
      want.emplace_back(p->grad.host<double>().begin(), p->grad.host<double>().end());
    }
    const StepResult two = training.step().gradients(apart);
    EXPECT_EQ(one.targets, 13);
    EXPECT_EQ(two.targets, 13);
    EXPECT_NEAR(one.loss, two.loss, 1e-12);
    EXPECT_NEAR(one.grad_norm, two.grad_norm, 1e-12);
    for (std::size_t p = 0; p < want.size(); ++p) {
      const auto have = training.model().store().parameters()[p]->grad.host<double>();
      for (std::size_t i = 0; i < have.size(); ++i) ASSERT_NEAR(have[i], want[p][i], 1e-13) << name;
    }
  }
}

TEST(TrainStep, RecomputationGivesTheSameBits) {
  for (const char* name : kReferenceModels) {
    Training plain(name, {}), recomputed(name, {.recompute_blocks = true});
    const auto run = [](Training& training) {
      const std::vector<MicroBatch> batches = {training.batch(2, 10, 1), training.batch(2, 10, 2)};
      return training.step().gradients(batches);
    };
    EXPECT_EQ(run(plain).loss, run(recomputed).loss) << name;
    EXPECT_TRUE(plain.gradients() == recomputed.gradients()) << name;
  }
}

TEST(TrainStep, MlpsInChunksGiveTheSameStepAndTheSameBitsEveryTime) {
  for (const char* name : kReferenceModels) {
    const BuildOptions in_chunks{.recompute_blocks = true, .mlp_tokens = 7};
    Training whole(name, {}), first(name, in_chunks), second(name, in_chunks);
    const auto run = [](Training& training) {
      const std::vector<MicroBatch> batches = {training.batch(2, 10, 1), training.batch(2, 10, 2)};
      return training.step().gradients(batches);
    };
    const StepResult want = run(whole), have = run(first);
    EXPECT_NEAR(have.loss, want.loss, 1e-5 * want.loss) << name;
    EXPECT_NEAR(have.grad_norm, want.grad_norm, 1e-5 * want.grad_norm) << name;
    EXPECT_EQ(run(second).loss, have.loss) << name;
    EXPECT_TRUE(first.gradients() == second.gradients()) << name;
    EXPECT_FALSE(first.gradients() == whole.gradients()) << name << ": were there chunks?";
  }
}

TEST(TrainStep, AStepDoesNotSeeTheGradientsOfTheLast) {
  Training training("gpt2", {});
  const std::vector<MicroBatch> first = {training.batch(2, 8, 1)},
                                second = {training.batch(2, 8, 2)};
  training.step().gradients(second);
  const auto want = training.gradients();
  training.step().gradients(first);
  EXPECT_FALSE(training.gradients() == want);
  training.step().gradients(second);
  EXPECT_TRUE(training.gradients() == want);
}

TEST(TrainStep, TargetsThatAreAllIgnoredGiveNoLossAndNoGradient) {
  Training training("llama", {});
  MicroBatch batch = training.batch(1, 6, 1);
  std::ranges::fill(batch.targets.host<std::int32_t>(), ops::kIgnoreTarget);
  const StepResult result = training.step().gradients({&batch, 1});
  EXPECT_EQ(result.targets, 0);
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.grad_norm, 0.0);
  EXPECT_TRUE(result.is_finite);
}

TEST(TrainStep, ClippingBoundsTheChangeButReportsTheNormBefore) {
  Training free("llama", {}), clipped("llama", {});
  const auto run = [](Training& training, double clip) {
    const std::vector<MicroBatch> batches = {training.batch(2, 8, 1)};
    return training.step().run(batches, {.lr = 1e-3, .step = 1}, clip);
  };
  const double norm = run(free, 0.0).grad_norm;
  EXPECT_EQ(run(clipped, norm / 4).grad_norm, norm);
  const Tensor without = free.model().store().state_pieces(0)[0].data;
  const Tensor with = clipped.model().store().state_pieces(0)[0].data;
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(with.host<float>()[i], without.host<float>()[i] / 4, 1e-6 * norm);
  }
}

}  // namespace
}  // namespace heddle
