#include "planner/gradient_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/rng.h"

namespace heddle::planner {
namespace {

/// Experts that take `base`, and more where a slice is longer than the idle network.
BackwardLayer layer_of(double base, double idle, double dense, double gradients) {
  return {.experts =
              [=](double slice) {
                ChosenPass pass;
                pass.seconds = base + std::max(0.0, slice - idle);
                return pass;
              },
          .dense_seconds = dense,
          .gradients = gradients};
}

double sum_of(const GradientSlices& slices) {
  double sum = slices.behind;
  for (const auto& layer : slices.layers) sum += layer.with_experts + layer.with_dense;
  return sum;
}

constexpr LinearTime kSum{.fixed = 0.1, .per_element = 1.0};

TEST(GradientWindows, FillIdleNetworksAndLeaveTheLastGradientsBehind) {
  const std::vector<BackwardLayer> layers(3, layer_of(10.0, 3.1, 1.1, 4.0));
  const GradientSlices slices = place_gradients(layers, kSum, 0.0, GradientWindows::all, 12);
  EXPECT_DOUBLE_EQ(sum_of(slices), 12.0);
  EXPECT_EQ(slices.layers[0].with_experts + slices.layers[0].with_dense, 0.0);  // nothing exists
  EXPECT_DOUBLE_EQ(slices.layers[1].with_experts, 3.0);
  EXPECT_DOUBLE_EQ(slices.layers[1].with_dense, 1.0);
  EXPECT_DOUBLE_EQ(slices.layers[2].with_experts, 3.0);
  EXPECT_DOUBLE_EQ(slices.behind, 4.0);
  EXPECT_DOUBLE_EQ(slices.seconds, 3 * (10.0 + 1.1) + 4.1);
}

TEST(GradientWindows, NothingIsSentBeforeItExists) {
  for (std::uint64_t key = 0; key < 200; ++key) {
    std::vector<BackwardLayer> layers;
    for (std::uint64_t i = 0; i < 5; ++i) {
      layers.push_back(layer_of(1.0, 6 * random_uniform(key, i), 3 * random_uniform(key, 20 + i),
                                4 * random_uniform(key, 40 + i)));
    }
    const double carried = random_uniform(key, 60);
    const GradientSlices slices = place_gradients(layers, kSum, carried);
    double exist = carried, sent = 0.0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      sent += slices.layers[i].with_experts;
      ASSERT_LE(sent, exist + 1e-9) << key << " layer " << i;
      sent += slices.layers[i].with_dense;
      ASSERT_LE(sent, exist + 1e-9);
      exist += layers[i].gradients;
    }
    ASSERT_NEAR(sent + slices.behind, exist, 1e-9);  // every element once
  }
}

/// Every division of whole pieces, by trying all.
double best_by_trial(const std::vector<BackwardLayer>& layers, std::size_t window, int sent,
                     const std::vector<int>& existing, double piece, int pieces) {
  if (window == 2 * layers.size()) return kSum((pieces - sent) * piece);
  const BackwardLayer& layer = layers[window / 2];
  double best = std::numeric_limits<double>::infinity();
  for (int count = 0; sent + count <= std::max(sent, existing[window / 2]); ++count) {
    const double sum = kSum(count * piece);
    const double now =
        window % 2 == 0 ? layer.experts(sum).seconds : std::max(layer.dense_seconds, sum);
    best = std::min(best,
                    now + best_by_trial(layers, window + 1, sent + count, existing, piece, pieces));
  }
  return best;
}

TEST(GradientWindows, TheDivisionIsTheBestOfAll) {
  constexpr int kPieces = 6;
  for (std::uint64_t key = 0; key < 100; ++key) {
    std::vector<BackwardLayer> layers;
    std::vector<int> existing;
    double total = 0.0;
    for (std::uint64_t i = 0; i < 3; ++i) {
      layers.push_back(
          layer_of(1.0, 2 * random_uniform(key, i), 2 * random_uniform(key, 20 + i), 2.0));
      existing.push_back(static_cast<int>(2 * i));
      total += 2.0;
    }
    const GradientSlices slices = place_gradients(layers, kSum, 0.0, GradientWindows::all, kPieces);
    ASSERT_NEAR(slices.seconds, best_by_trial(layers, 0, 0, existing, total / kPieces, kPieces),
                1e-12)
        << key;
    const double dense_only =
        place_gradients(layers, kSum, 0.0, GradientWindows::dense, kPieces).seconds;
    const double none = place_gradients(layers, kSum, 0.0, GradientWindows::none, kPieces).seconds;
    ASSERT_LE(slices.seconds, dense_only);
    ASSERT_LE(dense_only, none);
    double alone = kSum(total);
    for (const BackwardLayer& layer : layers) alone += 1.0 + layer.dense_seconds;
    ASSERT_NEAR(none, alone, 1e-12);
  }
}

TEST(GradientWindows, WithoutGradientsThereIsNothingToPlace) {
  const GradientSlices slices = place_gradients({layer_of(2.0, 1.0, 1.0, 0.0)}, kSum);
  EXPECT_DOUBLE_EQ(slices.seconds, 3.0);
  EXPECT_EQ(sum_of(slices), 0.0);
}

}  // namespace
}  // namespace heddle::planner
