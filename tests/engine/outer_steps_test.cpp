#include "parallel/exchange/outer_steps.h"

#include "engine/site_testing.h"

namespace heddle {
namespace {

/// Local training as one would write it down for a single process: a plain run for each site, and
/// loops over floats.
class ByHand {
 public:
  ByHand(int sites, const OuterPolicy& policy, const OptimizerConfig& optimizer) : policy_(policy) {
    for (int site = 0; site < sites; ++site) {
      sites_.push_back(
          std::make_unique<Training>("llama", BuildOptions{.positions = kLength}, optimizer));
    }
    for (const auto& held : sites_[0]->model().store().held()) {
      const auto values = held.value.host<float>();
      outer_[name(held)] = {values.begin(), values.end()};
      velocity_[name(held)].assign(values.size(), 0.0F);
      for (int site = 0; site < sites; ++site) {
        residuals_[{site, name(held)}].assign(values.size(), 0.0F);
      }
    }
  }

  void train(std::int64_t step) {
    for (std::size_t site = 0; site < sites_.size(); ++site) {
      std::vector<MicroBatch> batches;
      for (int i = 0; i < kSequences; ++i) {
        batches.push_back(SiteRank::batch(step, static_cast<int>(site), i, sites_[site]->memory()));
      }
      sites_[site]->step().run(batches, {.lr = 1e-2, .step = step}, 1.0);
    }
    const auto offset = [&](int p) { return std::int64_t{p} * policy_.every / policy_.fragments; };
    for (int p = 0; p < policy_.fragments; ++p) {
      if (step > offset(p) && (step - offset(p)) % policy_.every == 0) send(p, step);
    }
    for (const auto& name : std::exchange(due_[step], {})) apply(name);
  }

  const Weights& outer() const { return outer_; }
  Weights own(int site) const {
    Weights all;
    for (const auto& held : sites_[static_cast<std::size_t>(site)]->model().store().held()) {
      const auto values = held.value.host<float>();
      all[name(held)] = {values.begin(), values.end()};
    }
    return all;
  }
  const std::vector<float>& residual(int site, const std::string& name) const {
    return residuals_.at({site, name});
  }

 private:
  static std::string name(const ParamStore::HeldStretch& held) {
    return held.parameter->parts.front().name;
  }
  int fragment_of(const std::string& name) const {
    const auto at = name.find("layers.");
    return at == std::string::npos ? 0 : std::stoi(name.substr(at + 7)) % policy_.fragments;
  }

  void send(int fragment, std::int64_t step) {
    for (auto& [name, outer] : outer_) {
      if (fragment_of(name) != fragment) continue;
      std::vector<float> mean(outer.size(), 0.0F);
      for (std::size_t site = 0; site < sites_.size(); ++site) {
        const Weights weights = own(static_cast<int>(site));
        std::vector<float> sent(outer.size());
        for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = outer[i] - weights.at(name)[i];
        if (policy_.codec) sent = coded(sent, residuals_[{static_cast<int>(site), name}]);
        for (std::size_t i = 0; i < sent.size(); ++i) mean[i] += sent[i];
      }
      for (float& value : mean) value *= 1.0F / static_cast<float>(sites_.size());
      means_[name] = mean;
      due_[step + policy_.delay].push_back(name);
    }
  }

  std::vector<float> coded(const std::vector<float>& values, std::vector<float>& residual) const {
    Memory memory;
    Stream stream(1);
    const auto tensor = [&](const std::vector<float>& from) {
      const Tensor made =
          memory.alloc({static_cast<std::int64_t>(from.size())}, DType::f32, MemoryTag::workspace);
      std::memcpy(made.bytes(), from.data(), made.size_bytes());
      return made;
    };
    for (float& value : residual) value *= static_cast<float>(policy_.feedback);
    const Tensor x = tensor(values), left = tensor(residual);
    const auto bytes = [&](std::size_t count) {
      return memory.alloc({static_cast<std::int64_t>(count)}, DType::u8, MemoryTag::workspace);
    };
    const Tensor sent = bytes(policy_.codec->encoded_bytes(x.count()));
    policy_.codec->encode({.x = x,
                           .residual = policy_.feedback > 0.0 ? left : Tensor(),
                           .bytes = sent,
                           .bad = memory.zeros({1}, DType::i64, MemoryTag::workspace),
                           .workspace = bytes(policy_.codec->workspace_bytes(x.count()))},
                          stream);
    policy_.codec->decode(sent, x, stream);
    std::ranges::copy(left.host<float>(), residual.begin());
    const auto decoded = x.host<float>();
    return {decoded.begin(), decoded.end()};
  }

  void apply(const std::string& name) {
    std::vector<float>&d = means_[name], &v = velocity_[name], &outer = outer_[name];
    const auto momentum = static_cast<float>(policy_.momentum);
    for (std::size_t i = 0; i < d.size(); ++i) {
      v[i] = momentum * v[i] + d[i];
      outer[i] += static_cast<float>(-policy_.lr) * (d[i] + momentum * v[i]);
    }
    for (const auto& site : sites_) {
      for (const auto& held : site->model().store().held()) {
        if (this->name(held) != name) continue;
        const auto own = held.value.host<float>();
        const auto mix = static_cast<float>(policy_.mix);
        const auto rest = static_cast<float>(1.0 - policy_.mix);
        for (std::size_t i = 0; i < own.size(); ++i) own[i] = mix * own[i] + rest * outer[i];
      }
    }
  }

  const OuterPolicy policy_;
  std::vector<std::unique_ptr<Training>> sites_;
  Weights outer_, velocity_, means_;
  std::map<std::pair<int, std::string>, std::vector<float>> residuals_;
  std::map<std::int64_t, std::vector<std::string>> due_;
};

/// What is compared after so many steps with what is done by hand, bit for bit.
void expect_as_by_hand(int sites, const OuterPolicy& policy, const OptimizerConfig& optimizer,
                       std::int64_t steps) {
  ByHand by_hand(sites, policy, optimizer);
  for (std::int64_t step = 1; step <= steps; ++step) by_hand.train(step);
  run_ranks(sites, [&](World& world) {
    SiteRank rank({.sites = sites}, policy, world, optimizer);
    rank.start();
    for (std::int64_t step = 1; step <= steps; ++step) rank.train(step);
    EXPECT_EQ(rank.outer_weights(), by_hand.outer());
    EXPECT_EQ(rank.held(-1), by_hand.own(world.rank()));
    if (policy.feedback == 0.0) return;
    for (const auto& [name, values] : rank.held(rank.state("outer_residual"))) {
      EXPECT_EQ(values, by_hand.residual(world.rank(), name)) << name;
    }
  });
}

TEST(OuterSteps, OfOneFragmentAreDiLoCoBitForBit) { expect_as_by_hand(2, kPlain, {}, 7); }

TEST(OuterSteps, InFragmentsWithADelayAreStreamingDiLoCoBitForBit) {
  expect_as_by_hand(2, kStreaming, {}, 9);
  expect_as_by_hand(3, with_codec(kStreaming, "e3m0"), {}, 9);
}

TEST(OuterSteps, OfTheSparseFormKeepWhatTheyDidNotSend) {
  OuterPolicy sparse = with_codec({.every = 2, .lr = 1.0, .momentum = 0.0}, "topk:8:256");
  sparse.feedback = 0.95;
  expect_as_by_hand(2, sparse, {}, 6);
}

TEST(OuterSteps, WorkWithMuonInside) { expect_as_by_hand(2, kPlain, MuonConfig{}, 6); }

TEST(OuterSteps, ThatNeverChangeOwnWeightsLeavePlainRuns) {
  OuterPolicy all_own = kStreaming, never = kPlain;
  all_own.mix = 1.0;
  never.every = 100;
  ByHand plain(2, never, {});
  for (std::int64_t step = 1; step <= 9; ++step) plain.train(step);
  for (const OuterPolicy& policy : {all_own, never}) {
    run_ranks(2, [&](World& world) {
      SiteRank rank({.sites = 2}, policy, world);
      rank.start();
      for (std::int64_t step = 1; step <= 9; ++step) rank.train(step);
      EXPECT_EQ(rank.held(-1), plain.own(world.rank()));
    });
  }
}

TEST(OuterSteps, AfterEveryStepOfSgdAreDataParallelSgd) {
  const OuterPolicy policy{.every = 1, .lr = 1.0, .momentum = 0.0};
  run_ranks(2, [&](World& world) {
    SiteRank rank({.sites = 2}, policy, world, SgdConfig{});
    rank.start();
    Training plain("llama", {.positions = kLength}, SgdConfig{});
    for (std::int64_t step = 1; step <= 5; ++step) {
      std::vector<MicroBatch> batches;
      for (int i = 0; i < 2 * kSequences; ++i) {
        batches.push_back(SiteRank::batch(step, i / kSequences, i % kSequences, plain.memory()));
      }
      // Not clipped: norms are those of sites.
      plain.step().run(batches, {.lr = 1e-3, .step = step}, 0.0);
      std::vector<MicroBatch> own(batches.begin() + world.rank() * kSequences,
                                  batches.begin() + (world.rank() + 1) * kSequences);
      rank.run(own, 1e-3, 0.0);
    }
    Weights expected;
    for (const auto& held : plain.model().store().held()) {
      const auto values = held.value.host<float>();
      expected[held.parameter->parts.front().name] = {values.begin(), values.end()};
    }
    EXPECT_LT(distance(expected, rank.held(-1)), 1e-6);
  });
}

}  // namespace
}  // namespace heddle
