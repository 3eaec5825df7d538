#include "parallel/param_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss_head.h"
#include "nn/norm.h"
#include "nn/parameter_testing.h"
#include "parallel/store_testing.h"

namespace heddle {
namespace {

/// Tied embedding and head around a norm and a linear, in three units; sizes that need padding.
class Store : public testing::Test {
 protected:
  Store() {
    tokens_ = parameter("embedding", {7, 3});
    scale_ = parameter("norm", {3}, {Init::Kind::ones});
    weight_ = stacked({{"q", 3}, {"k", 2}}, {5, 3});
    bias_ = stacked({{"q.b", 3}, {"k.b", 2}}, {5}, {Init::Kind::zeros});
    layers_.push_back(std::make_unique<Embedding>(tokens_));
    layers_.push_back(std::make_unique<RmsNorm>(scale_, 1e-5));
    layers_.push_back(std::make_unique<Linear>(weight_, bias_));
    layers_.push_back(std::make_unique<LossHead>(tokens_, LossHead::Options{}));
    for (const auto& layer : layers_) units_.push_back(layer.get());
  }

  ParamStore make(ParamStore::Purpose purpose = ParamStore::Purpose::training) {
    return {units_, DType::f64, purpose, memory_};
  }

  static bool lies_in(const Tensor& inner, const Tensor& outer) {
    return inner.bytes() >= outer.bytes() &&
           inner.bytes() + inner.size_bytes() <= outer.bytes() + outer.size_bytes();
  }

  Memory memory_;
  Stream stream_{1};
  std::shared_ptr<Parameter> tokens_, scale_, weight_, bias_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Layer*> units_;
};

TEST_F(Store, HasATiedParameterOnce) {
  const ParamStore store = make();
  EXPECT_EQ(store.parameters(),
            (std::vector<Parameter*>{tokens_.get(), scale_.get(), weight_.get(), bias_.get()}));
  EXPECT_EQ(store.parameter_count(), 21 + 3 + 15 + 5);
}

TEST_F(Store, ShardsCoverEveryParameterExactlyOnce) {
  ParamStore store = make();
  store.declare({{"first"}, {"second"}});
  for (const OptShard& shard : store.shards()) {
    for (const Tensor& flat : {shard.value, shard.grad, shard.states[0], shard.states[1]}) {
      EXPECT_EQ(flat.dims(), 1);
      EXPECT_EQ(flat.count(), shard.value.count());
    }
  }
  const auto values = store.value_pieces(), grads = store.grad_pieces();
  const auto first = store.state_pieces(0), second = store.state_pieces(1);
  ASSERT_EQ(values.size(), 6u);
  for (std::size_t i = 0; i < values.size(); ++i) {
    int homes = 0;
    for (const OptShard& shard : store.shards()) {
      if (!lies_in(values[i].data, shard.value)) continue;
      ++homes;
      EXPECT_TRUE(lies_in(grads[i].data, shard.grad));
      EXPECT_TRUE(lies_in(first[i].data, shard.states[0]));
      EXPECT_TRUE(lies_in(second[i].data, shard.states[1]));
    }
    EXPECT_EQ(homes, 1) << values[i].part->name;
  }
}

TEST_F(Store, PaddingAddsNothingToGradientsAndMoments) {
  ParamStore store = make();
  store.declare({{"first"}, {"second"}});
  for (Parameter* p : store.parameters()) std::ranges::fill(p->grad.host<double>(), 1.0);
  double grads = 0.0, moments = 0.0;
  std::int64_t elements = 0;
  for (const OptShard& shard : store.shards()) {
    const auto sum = [](const Tensor& flat) {
      const auto host = flat.host<double>();
      return std::accumulate(host.begin(), host.end(), 0.0);
    };
    grads += sum(shard.grad);
    moments += sum(shard.states[0]) + sum(shard.states[1]);
    elements += shard.grad.count();
  }
  EXPECT_EQ(grads, static_cast<double>(store.parameter_count()));
  EXPECT_EQ(moments, 0.0);
  EXPECT_GT(elements, store.parameter_count()) << "there is no padding to test";
}

TEST_F(Store, OnlyMatricesDecay) {
  ParamStore store = make();
  store.declare({{"first"}, {"second"}});
  for (const Parameter* p : store.parameters()) {
    for (const OptShard& shard : store.shards()) {
      if (lies_in(p->value, shard.value)) {
        EXPECT_EQ(shard.decays, p->shape.dims() == 2) << p->parts.front().name;
      }
    }
  }
}

TEST_F(Store, ForInferenceHasValuesOnly) {
  ParamStore store = make(ParamStore::Purpose::inference);
  EXPECT_TRUE(store.shards().empty());
  EXPECT_TRUE(weight_->value.defined());
  EXPECT_FALSE(weight_->grad.defined());
  const MemoryStats stats = memory_.stats();
  EXPECT_EQ(stats.live[static_cast<std::size_t>(MemoryTag::parameters)], stats.peak);
}

TEST_F(Store, FinishedGradientsOfUntouchedParametersAreZero) {
  ParamStore store = make();
  for (Parameter* p : store.parameters()) std::ranges::fill(p->grad.host<double>(), 3.0);
  bool is_claimed = false;
  walk_gradients(store, stream_, [&](int) {
    if (!std::exchange(is_claimed, true)) bias_->claim_grad();
  });
  EXPECT_EQ(bias_->grad.host<double>()[0], 3.0);
  for (const double g : weight_->grad.host<double>()) EXPECT_EQ(g, 0.0);
}

/// Initial values of the parts by name, as bytes.
std::map<std::string, std::string> initial(const std::vector<std::vector<Parameter*>>& by_unit,
                                           int threads) {
  struct Unit : Layer {
    std::vector<Parameter*> own;
    Tensor forward(const Tensor&, Saved&, Ctx&) override { return {}; }
    Tensor backward_input(const Tensor&, Saved&, Ctx&) override { return {}; }
    void backward_weight(Saved&, Ctx&) override {}
    void visit(const ParamVisitor& visitor) override {
      for (Parameter* p : own) visitor(*p);
    }
    Cost cost(const CostShape&) const override { return {}; }
  };
  std::vector<Unit> units(by_unit.size());
  std::vector<Layer*> pointers;
  for (std::size_t i = 0; i < units.size(); ++i) {
    units[i].own = by_unit[i];
    pointers.push_back(&units[i]);
  }
  Memory memory;
  Stream stream(threads);
  ParamStore store(pointers, DType::f32, ParamStore::Purpose::inference, memory);
  initialize(store, 42, stream);
  std::map<std::string, std::string> bytes;
  for (const ParamPiece& piece : store.value_pieces()) {
    bytes[piece.part->name].assign(reinterpret_cast<const char*>(piece.data.bytes()),
                                   piece.data.size_bytes());
  }
  return bytes;
}

TEST(Initialize, DoesNotDependOnFusionUnitsOrThreads) {
  const auto fused = stacked({{"q", 300}, {"k", 100}}, {400, 70});
  const auto norm = parameter("norm", {70}, {Init::Kind::ones});
  const auto q = parameter("q", {300, 70}), k = parameter("k", {100, 70});
  const auto want = initial({{fused.get(), norm.get()}}, 1);
  EXPECT_NE(want.at("q").substr(0, 400), want.at("k").substr(0, 400));
  EXPECT_EQ(initial({{norm.get()}, {k.get()}, {q.get()}}, 1), want);
  EXPECT_EQ(initial({{fused.get(), norm.get()}}, 2), want);
  EXPECT_EQ(initial({{k.get(), q.get()}, {norm.get()}}, 4), want);
}

TEST(Initialize, HasTheMeanAndDeviationAskedFor) {
  const auto p = parameter("w", {200, 100}, {Init::Kind::normal, 0.05});
  const auto bytes = initial({{p.get()}}, 1).at("w");
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  double sum = 0.0, squares = 0.0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 0.05 * 4 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.05, 0.05 * 0.03);
}

}  // namespace
}  // namespace heddle
