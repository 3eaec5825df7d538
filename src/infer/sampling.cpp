#include "infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace heddle {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t index) {
  const auto most_likely = std::ranges::max_element(logits);
  if (options.temperature <= 0.0) return static_cast<std::int32_t>(most_likely - logits.begin());

  const double largest = *most_likely;
  std::vector<double> weight(logits.size());
  std::ranges::transform(logits, weight.begin(), [&](float logit) {
    return std::exp((static_cast<double>(logit) - largest) / options.temperature);
  });
  // Candidates from the most likely on, cut by top-k, then by top-p of what is left.
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const double wa = weight[static_cast<std::size_t>(a)], wb = weight[static_cast<std::size_t>(b)];
    return wa > wb || (wa == wb && a < b);
  };
  std::size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  if (kept < order.size()) {
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(kept),
                              more_likely);
  } else if (options.top_p < 1.0) {
    std::ranges::sort(order, more_likely);
  }
  double mass = 0.0;
  for (std::size_t i = 0; i < kept; ++i) mass += weight[static_cast<std::size_t>(order[i])];
  if (options.top_p < 1.0) {
    double reached = 0.0;
    std::size_t i = 0;
    while (i < kept && reached < options.top_p * mass) {
      reached += weight[static_cast<std::size_t>(order[i++])];
    }
    kept = std::max<std::size_t>(i, 1);
    mass = kept == 1 ? weight[static_cast<std::size_t>(order[0])] : reached;
  }
  double left = random_uniform(rng_key(options.seed, "sampling"), index) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weight[static_cast<std::size_t>(order[i])];
    if (left < 0.0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace heddle
