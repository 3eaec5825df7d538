// What gates of experts do beside routing, on a GPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "ops/cuda_testing.h"
#include "ops/embedding.h"
#include "ops/gate.h"

namespace heddle::ops {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class CudaGate : public OnGpu {};

struct GateSize {
  std::int64_t tokens, experts, slots;
};
constexpr GateSize kSizes[] = {{1, 4, 1}, {37, 8, 2}, {3000, 64, 8}, {700, 300, 6}, {0, 8, 2}};

/// Different experts for each token, the lower ones more often; some absent.
Tensor skewed_choices(const GateSize& size, bool has_absent) {
  const Tensor t = empty({size.tokens, size.slots}, DType::i32);
  std::uint64_t index = 0;
  for (std::int64_t token = 0; token < size.tokens; ++token) {
    const auto own = t.host<std::int32_t>().subspan(static_cast<std::size_t>(token * size.slots),
                                                    static_cast<std::size_t>(size.slots));
    for (std::size_t k = 0; k < own.size();) {
      const std::uint64_t drawn = random_u64(31, index++);
      const auto all = static_cast<std::uint64_t>(size.experts);
      const auto expert = static_cast<std::int32_t>(drawn % (drawn % 3 == 0 ? all : all / 2));
      if (std::ranges::count(own.first(k), expert) > 0) continue;
      own[k++] = expert;
    }
    if (has_absent && token % 5 == 0) own.back() = kAbsentRow;
    if (has_absent && token % 35 == 0) std::ranges::fill(own, kAbsentRow);
  }
  return t;
}

Tensor copy_of(const Tensor& host) {
  Stream stream(1);
  const Tensor made = empty(host.shape(), host.dtype());
  copy(host, made, stream);
  return made;
}

TEST_F(CudaGate, WeighsChoicesAsTheCpu) {
  using enum RouterRule::Score;
  for (const GateSize& size : kSizes) {
    for (const RouterRule& rule :
         {RouterRule{}, RouterRule{.renormalize = false}, RouterRule{.score = sigmoid},
          RouterRule{.score = sigmoid, .renormalize = false, .scale = 2.5}}) {
      const auto& [T, E, K] = size;
      SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", T, K, E));
      const Tensor logits = random({T, E}, DType::f32, 3, 4.0);
      const Tensor experts = skewed_choices(size, true), weights = empty({T, K}, DType::f64);
      weigh_choices(logits, rule, experts, weights, cpu());
      const Tensor dev_weights = device_unwritten({T, K}, DType::f32);
      weigh_choices(up(logits, DType::f32), rule, up(experts), dev_weights, gpu());
      expect_near(dev_weights, weights, 2e-6, "weights");
    }
  }
}

TEST_F(CudaGate, WeighsThoseThatAreFarBelowTheLargestAsTheCpu) {
  const Tensor logits = empty({1, 3}, DType::f64), experts = empty({1, 2}, DType::i32),
               weights = empty({1, 2}, DType::f64), dlogits = empty({1, 3}, DType::f64);
  set(logits, {3000, 0, -1});
  std::ranges::copy(std::array{1, 2}, experts.host<std::int32_t>().begin());
  weigh_choices(logits, {}, experts, weights, cpu());
  route_backward(weights, logits, {}, experts, dlogits, cpu());
  const Tensor dev_logits = up(logits, DType::f32), dev_experts = up(experts),
               dev_weights = device_unwritten({1, 2}, DType::f32),
               dev_dlogits = device_unwritten({1, 3}, DType::f32);
  weigh_choices(dev_logits, {}, dev_experts, dev_weights, gpu());
  expect_near(dev_weights, weights, 2e-6, "weights");
  route_backward(dev_weights, dev_logits, {}, dev_experts, dev_dlogits, gpu());
  expect_near(dev_dlogits, dlogits, 2e-6, "gradients of logits");
}

/// Scores with many equal ones, some that are no numbers and zeros of both signs.
Tensor coarse_scores(const Shape& shape) {
  const Tensor scores = random_tensor(shape, DType::f64, 9, 1.0);
  std::size_t i = 0;
  for (double& score : scores.host<double>()) {
    score = std::round(score * 16.0) / 16.0;
    if (++i % 11 == 0) score = kNan;
    if (i % 13 == 0) score = -0.0;
    if (i % 17 == 0) score = -std::numeric_limits<double>::infinity();
  }
  return scores;
}

TEST_F(CudaGate, DropsWhomTheCpuDrops) {
  for (const GateSize& size : kSizes) {
    const auto& [T, E, K] = size;
    const Tensor made = skewed_choices(size, true), scores = coarse_scores({T, K});
    for (const Victims victims :
         {Victims::late_slots, Victims::late_tokens, Victims::unsure, Victims::low_scores}) {
      for (const std::int64_t capacity : {std::int64_t{1}, std::int64_t{3}, T * K / E + 1, T * K}) {
        if (capacity == 0) continue;
        SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts, rule {}, room for {}", T, K, E,
                                 static_cast<int>(victims), capacity));
        const Tensor kept = copy_of(made), dev_kept = up(made);
        drop_choices(scores, victims, capacity, {}, E, kept, cpu());
        drop_choices(up(scores, DType::f32), victims, capacity, {}, E, dev_kept, gpu());
        expect_same(dev_kept, kept, "choices that are left");
      }
    }
  }
}

TEST_F(CudaGate, WhatIsDrawnIsRefusedByName) {
  const Tensor experts = device_empty({2, 1}, DType::i32),
               scores = device_empty({2, 1}, DType::f32);
  EXPECT_THROW(drop_choices(scores, Victims::random, 1, {}, 4, experts, gpu()), Error);
  EXPECT_THROW(add_noise(scores, Noise::gaussian, 1.0, {}, gpu()), Error);
  EXPECT_THROW(choose_tokens(scores, 1, experts, gpu()), Error);
  EXPECT_THROW(choose_by_plan(scores, {}, experts, gpu()), Error);
}

TEST_F(CudaGate, CountsAsTheCpu) {
  for (const GateSize& size : kSizes) {
    const auto& [T, E, K] = size;
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", T, K, E));
    const Tensor made = skewed_choices(size, false), kept = skewed_choices(size, true);
    // Beyond what f32 counts.
    const Tensor load = empty({E + 2}, DType::f64);
    std::ranges::fill(load.host<double>(), 0x1p40);
    const Tensor dev_load = up(load);
    for (int i = 0; i < 2; ++i) {
      add_load(made, kept, load, cpu());
      add_load(up(made), up(kept), dev_load, gpu());
    }
    EXPECT_EQ(values(down(dev_load)), values(load));

    const Tensor counts = empty({E + 1}, DType::f32);
    const Tensor dev_counts = device_unwritten({E + 1}, DType::f32);
    for (const double each : {0.0, 1.0}) {
      for (double& value : load.host<double>()) value *= each;
      counts_of_load(load, K, counts, cpu());
      counts_of_load(up(load), K, dev_counts, gpu());
      EXPECT_EQ(values(down(dev_counts)), values(counts));
      add_load(made, kept, load, cpu());
    }

    for (const std::int64_t sequences : {1, 3}) {
      const Tensor sequence = empty({T}, DType::i32);
      std::int32_t t = 0;
      for (std::int32_t& of : sequence.host<std::int32_t>()) {
        of = t++ / 2 % static_cast<std::int32_t>(sequences);
      }
      for (const std::int64_t slots : {std::int64_t{1}, K, K + 1}) {
        const Tensor by_sequence = empty({sequences, E + 1}, DType::f64);
        const Tensor dev_by_sequence = device_unwritten({sequences, E + 1}, DType::f32);
        count_by_sequence(kept, sequence, slots, by_sequence, cpu());
        count_by_sequence(up(kept), up(sequence), slots, dev_by_sequence, gpu());
        expect_near(dev_by_sequence, by_sequence, 0.0, "choices by sequence");
      }
    }
  }
}

TEST_F(CudaGate, MovesBiasesAsTheCpu) {
  constexpr std::int64_t E = 300;
  const Tensor load = empty({E}, DType::f64);
  std::uint64_t index = 0;
  for (double& value : load.host<double>()) {
    value = static_cast<double>(random_u64(5, index++) % 3 + 40000);
  }
  for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, E}, {41, 7}}) {
    for (const double factor : {1.0, kNan}) {
      const Tensor bias = random_tensor({count}, DType::f32, 6, 1.0), dev_bias = up(bias);
      const Tensor clip = empty({1}, DType::f32);
      clip.host<float>()[0] = static_cast<float>(factor);
      balance_bias(load, 1e-3, clip, begin, bias, cpu());
      balance_bias(up(load), 1e-3, up(clip), begin, dev_bias, gpu());
      EXPECT_EQ(values(down(dev_bias)), values(bias));
    }
  }
}

TEST_F(CudaGate, PicksNumbersAsTheCpu) {
  for (const std::int64_t count : {0, 1, 1000}) {
    const Tensor numbers = skewed_choices({400, 64, 1}, true).view({400});
    const Tensor index = empty({count}, DType::i32), picked = empty({count}, DType::i32);
    std::uint64_t i = 0;
    for (std::int32_t& at : index.host<std::int32_t>()) {
      at = i % 7 == 0 ? kAbsentRow : static_cast<std::int32_t>(random_u64(8, i) % 400);
      ++i;
    }
    const Tensor dev_picked = device_empty({count}, DType::i32);
    pick_numbers(numbers, index, picked, cpu());
    pick_numbers(up(numbers), up(index), dev_picked, gpu());
    expect_same(dev_picked, picked, "numbers");
  }
}

TEST_F(CudaGate, FillsDoublesExactly) {
  const Tensor all = device_empty({3, 4}, DType::f64);
  fill(all, 0.0, gpu());
  fill(all.slice(1, 1, 3), 0.1, gpu());
  EXPECT_EQ(values(down(all)),
            (std::vector<double>{0, 0.1, 0.1, 0, 0, 0.1, 0.1, 0, 0, 0.1, 0.1, 0}));
}

}  // namespace
}  // namespace heddle::ops
