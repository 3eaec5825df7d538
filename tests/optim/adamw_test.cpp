#include "optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "nn/linear.h"
#include "nn/parameter_testing.h"

namespace heddle {
namespace {

/// The update as published, one element at a time.
struct ReferenceAdamW {
  AdamWConfig config;
  std::vector<double> m, v;

  void step(std::vector<double>& p, const std::vector<double>& g, const StepArgs& args,
            bool decays) {
    const double clip = args.clip.host<float>()[0];
    m.resize(p.size());
    v.resize(p.size());
    const auto t = static_cast<double>(args.step);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double scaled = g[i] * clip;
      m[i] = config.beta1 * m[i] + (1.0 - config.beta1) * scaled;
      v[i] = config.beta2 * v[i] + (1.0 - config.beta2) * scaled * scaled;
      const double mean = m[i] / (1.0 - std::pow(config.beta1, t));
      const double square = v[i] / (1.0 - std::pow(config.beta2, t));
      if (decays) p[i] -= args.lr * config.weight_decay * p[i];
      p[i] -= args.lr * mean / (std::sqrt(square) + config.eps);
    }
  }
};

std::vector<double> values_of(const Tensor& tensor) {
  const auto host = tensor.host<double>();
  return {host.begin(), host.end()};
}

TEST(AdamW, FollowsThePublishedUpdateAndDecaysMatricesOnly) {
  Memory memory;
  Stream stream(1);
  const auto weight = parameter("w", {5, 7}), bias = parameter("b", {5});
  Linear linear(weight, bias);
  Layer* unit = &linear;
  ParamStore store({&unit, 1}, DType::f64, ParamStore::Purpose::training, memory);
  const AdamWConfig config{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
  const auto optimizer = make_optimizer(config, store);
  ReferenceAdamW references[] = {{config, {}, {}}, {config, {}, {}}};
  initialize(store, 1, stream);
  std::vector<double> want[] = {values_of(weight->value), values_of(bias->value)};
  for (std::int64_t step = 1; step <= 5; ++step) {
    const Tensor clip = memory.alloc({1}, DType::f32, MemoryTag::workspace);
    clip.host<float>()[0] = 1.0F / static_cast<float>(step);
    const StepArgs args{.lr = 0.01 * static_cast<double>(step), .clip = clip, .step = step};
    for (std::size_t i = 0; i < 2; ++i) {
      const Parameter& p = *store.parameters()[i];
      std::uint64_t at = 0;
      for (double& g : p.grad.host<double>()) {
        g = random_normal(static_cast<std::uint64_t>(step), 100 * i + at++);
      }
      references[i].step(want[i], values_of(p.grad), args, p.is_matrix());
    }
    optimizer->step(args, stream);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto have = values_of(store.parameters()[i]->value);
      const auto first = values_of(store.state_pieces(0)[i].data),
                 second = values_of(store.state_pieces(1)[i].data);
      for (std::size_t at = 0; at < have.size(); ++at) {
        ASSERT_NEAR(have[at], want[i][at], 1e-12) << "step " << step << " element " << at;
        ASSERT_NEAR(first[at], references[i].m[at], 1e-12);
        ASSERT_NEAR(second[at], references[i].v[at], 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace heddle
