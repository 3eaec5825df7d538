#include "model/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace heddle {
namespace {

/// The published formula of Llama 3.1: long waves are slowed down by the factor, short ones left
/// alone, and those between blended.
double llama3_frequency(double frequency, const RopeSpec& spec) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < spec.original_positions / spec.high_freq_factor) return frequency;
  if (wavelength > spec.original_positions / spec.low_freq_factor) return frequency / spec.factor;
  const double blend = (spec.original_positions / wavelength - spec.low_freq_factor) /
                       (spec.high_freq_factor - spec.low_freq_factor);
  return (1.0 - blend) * frequency / spec.factor + blend * frequency;
}

/// Dynamic NTK scaling: the base grows with the length.
double dynamic_base(const RopeSpec& spec, std::int64_t length) {
  const double ratio =
      std::max(static_cast<double>(length), spec.original_positions) / spec.original_positions;
  const auto dims = static_cast<double>(spec.dims);
  return spec.theta * std::pow(spec.factor * ratio - (spec.factor - 1.0), dims / (dims - 2.0));
}

/// YaRN: pairs that turn often in the original length are left alone, those that do not turn once
/// are slowed down by the factor, and a ramp lies between them.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeSpec& spec) {
    low_ = pair_of(spec.beta_fast, spec);
    high_ = pair_of(spec.beta_slow, spec);
    if (spec.truncates) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(spec.dims - 1));
    if (low_ == high_) high_ += 0.001;
  }
  /// 0 where a pair is left alone, 1 where it is slowed down.
  double at(std::int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  /// The pair that makes so many turns in the original length.
  static double pair_of(double turns, const RopeSpec& spec) {
    return static_cast<double>(spec.dims) *
           std::log(spec.original_positions / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(spec.theta));
  }
  double low_, high_;
};

bool is_long(const RopeSpec& spec, std::int64_t length) {
  return static_cast<double>(length) > spec.original_positions;
}

/// Of lengths with the same frequencies one.
std::int64_t length_class(const RopeSpec& spec, std::int64_t length) {
  const auto original = static_cast<std::int64_t>(spec.original_positions);
  if (spec.scaling == RopeSpec::Scaling::dynamic) return std::max(length, original);
  return is_long(spec, length) ? original + 1 : original;
}

RopeTable make_table(const RopeSpec& spec, std::int64_t positions, std::int64_t length, DType dtype,
                     Memory& memory) {
  const auto frequencies = rope_frequencies(spec, length);
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  Memory host = memory.for_host();
  const Tensor cos_PR = host.alloc({positions, pairs}, dtype, MemoryTag::parameters);
  const Tensor sin_PR = host.alloc({positions, pairs}, dtype, MemoryTag::parameters);
  const auto fill = [&]<class T>(T* cosine, T* sine) {
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        // The product is rounded to float first, as in the reference implementation.
        const float angle =
            static_cast<float>(p) * static_cast<float>(frequencies[static_cast<std::size_t>(i)]);
        cosine[p * pairs + i] =
            static_cast<T>(spec.attention_factor * std::cos(static_cast<double>(angle)));
        sine[p * pairs + i] =
            static_cast<T>(spec.attention_factor * std::sin(static_cast<double>(angle)));
      }
    }
  };
  if (dtype == DType::f64) {
    fill(cos_PR.data<double>(), sin_PR.data<double>());
  } else {
    fill(cos_PR.data<float>(), sin_PR.data<float>());
  }
  return {.cos_PR = memory.place(cos_PR, MemoryTag::parameters),
          .sin_PR = memory.place(sin_PR, MemoryTag::parameters)};
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec, std::int64_t length) {
  using Scaling = RopeSpec::Scaling;
  const double theta = spec.scaling == Scaling::dynamic ? dynamic_base(spec, length) : spec.theta;
  std::optional<YarnRamp> ramp;
  if (spec.scaling == Scaling::yarn) ramp.emplace(spec);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < spec.dims / 2; ++i) {
    double frequency =
        1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(spec.dims));
    if (spec.scaling == Scaling::linear) frequency /= spec.factor;
    if (spec.scaling == Scaling::llama3) frequency = llama3_frequency(frequency, spec);
    if (ramp) {
      const double slowed = ramp->at(i);
      frequency *= slowed / spec.factor + (1.0 - slowed);
    }
    if (spec.scaling == Scaling::longrope) {
      const auto& factors = is_long(spec, length) ? spec.long_factors : spec.short_factors;
      frequency /= factors[static_cast<std::size_t>(i)];
    }
    frequencies.push_back(static_cast<double>(static_cast<float>(frequency)));
  }
  return frequencies;
}

std::shared_ptr<const RopeTables> make_rope_tables(const std::optional<RopeSpec>& spec,
                                                   std::int64_t positions, DType dtype,
                                                   Memory& memory) {
  if (!spec) return std::make_shared<RopeTables>();
  const auto pairs = spec->pairs_neighbours ? ops::RopePairs::neighbours : ops::RopePairs::halves;
  if (!spec->depends_on_length()) {
    return std::make_shared<RopeTables>(make_table(*spec, positions, positions, dtype, memory),
                                        pairs);
  }
  return std::make_shared<RopeTables>(
      positions, pairs,
      RopeTables::ByLength{
          .class_of = [spec](std::int64_t length) { return length_class(*spec, length); },
          .make =
              [spec, positions, dtype, memory](std::int64_t length) mutable {
                return make_table(*spec, positions, length, dtype, memory);
              }});
}

}  // namespace heddle
