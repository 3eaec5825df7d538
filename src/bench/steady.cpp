#include "bench/steady.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace heddle {
namespace {

/// Seconds are made rates, so that more is faster everywhere.
struct Figure {
  const char* name;
  const char* unit;
  double RankRates::*member;
  bool is_seconds;
  double scale;

  double rate(const RankRates& rates) const {
    return scale * (is_seconds ? 1.0 / rates.*member : rates.*member);
  }
};

constexpr std::array kFigures = {
    Figure{"a large product", "GFLOP/s", &RankRates::product_flops, false, 1e-9},
    Figure{"attention", "GFLOP/s", &RankRates::attention_flops, false, 1e-9},
    Figure{"what lies between products", "GB/s", &RankRates::block_bytes, false, 1e-9},
    Figure{"copies", "GB/s", &RankRates::copy_bytes, false, 1e-9},
    Figure{"cross entropy", "Mlogit/s", &RankRates::logit_seconds, true, 1e-6},
    Figure{"updates", "Mparameter/s", &RankRates::parameter_seconds, true, 1e-6}};

bool agree(const RankRates& a, const RankRates& b) {
  return std::ranges::all_of(kFigures, [&](const Figure& figure) {
    return std::abs(std::log(figure.rate(a) / figure.rate(b))) <= std::log(1.0 + kAgreement);
  });
}

MeasuredPass faster_of(const MeasuredPass& a, const MeasuredPass& b) {
  MeasuredPass best = a.others <= b.others ? a : b;
  for (const Figure& figure : kFigures) {
    const double one = a.rates.*figure.member, two = b.rates.*figure.member;
    best.rates.*figure.member = figure.is_seconds ? std::min(one, two) : std::max(one, two);
  }
  best.rates.kernel_seconds = std::min(a.rates.kernel_seconds, b.rates.kernel_seconds);
  best.rates.product_spread = std::max(a.rates.product_spread, b.rates.product_spread);
  for (std::size_t i = 0; i < best.rates.attention_by_head.size(); ++i) {
    best.rates.attention_by_head[i][1] =
        std::max(a.rates.attention_by_head[i][1], b.rates.attention_by_head[i][1]);
  }
  for (std::size_t i = 0; i < best.rates.codecs.size(); ++i) {
    for (double CodecSamples::*rate :
         {&CodecSamples::encode, &CodecSamples::encode_with_residual, &CodecSamples::decode}) {
      best.rates.codecs[i].*rate = std::max(a.rates.codecs[i].*rate, b.rates.codecs[i].*rate);
    }
  }
  for (std::size_t i = 0; i < best.rates.products.size(); ++i) {
    best.rates.products[i].seconds =
        std::min(a.rates.products[i].seconds, b.rates.products[i].seconds);
  }
  return best;
}

/// What AdamW reads and writes of a parameter: weight, gradient and two moments, three of them
/// back.
constexpr double kUpdateBytes = 28;

}  // namespace

std::optional<MeasuredPass> steady_pass(const std::vector<MeasuredPass>& passes) {
  for (std::size_t i = 0; i < passes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (std::max(passes[i].others, passes[j].others) > kMostForOthers) continue;
      if (agree(passes[i].rates, passes[j].rates)) return faster_of(passes[j], passes[i]);
    }
  }
  return std::nullopt;
}

std::string unsteadiness(const std::vector<MeasuredPass>& passes) {
  const Figure* worst = nullptr;
  double low = 0, high = 0, others = 0;
  for (const MeasuredPass& pass : passes) others = std::max(others, pass.others);
  for (const Figure& figure : kFigures) {
    const auto [least, most] = std::ranges::minmax(
        passes, {}, [&](const MeasuredPass& pass) { return figure.rate(pass.rates); });
    const double from = figure.rate(least.rates), to = figure.rate(most.rates);
    if (worst != nullptr && to / from <= high / low) continue;
    worst = &figure, low = from, high = to;
  }
  return fmt::format(
      "{} between {:.3g} and {:.3g} {} in {} passes; other processes had up to {:.0f} "
      "% of the cores",
      worst->name, low, high, worst->unit, passes.size(), 100 * others);
}

std::vector<std::string> contradictions(const MachineSamples& samples) {
  std::vector<std::string> found;
  const RankRates& alone = samples.rates.front();
  for (const RankRates& rates : samples.rates) {
    const auto say = [&](const std::string& what) {
      found.push_back(fmt::format("{} rank{}: {}", rates.ranks, rates.ranks == 1 ? "" : "s", what));
    };
    const double copies = rates.copy_bytes, updates = kUpdateBytes / rates.parameter_seconds;
    if (rates.block_bytes < copies / 4) {
      say(fmt::format("{:.3g} GB/s between products, but copies at {:.3g} GB/s",
                      rates.block_bytes * 1e-9, copies * 1e-9));
    }
    if (updates > 4 * copies || updates < copies / 10) {
      say(fmt::format("updates that move {:.3g} GB/s, but copies at {:.3g} GB/s", updates * 1e-9,
                      copies * 1e-9));
    }
    if (rates.attention_flops > 1.5 * rates.product_flops) {
      say(fmt::format("attention at {:.4g} GFLOP/s, but products at {:.4g}",
                      rates.attention_flops * 1e-9, rates.product_flops * 1e-9));
    }
    // Ranks of a CPU share its cores: one of several cannot do more than one that has all.
    if (samples.is_gpu || &rates == &alone) continue;
    if (rates.product_flops > 1.25 * alone.product_flops) {
      say(fmt::format("products at {:.4g} GFLOP/s each, but {:.4g} with all cores",
                      rates.product_flops * 1e-9, alone.product_flops * 1e-9));
    }
    if (rates.copy_bytes > 1.5 * alone.copy_bytes) {
      say(fmt::format("copies at {:.3g} GB/s each, but {:.3g} with all cores", copies * 1e-9,
                      alone.copy_bytes * 1e-9));
    }
  }
  return found;
}

}  // namespace heddle
