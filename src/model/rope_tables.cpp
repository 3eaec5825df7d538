#include "model/rope_tables.h"

#include <cmath>
#include <numbers>

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

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < spec.dims / 2; ++i) {
    double frequency =
        1.0 / std::pow(spec.theta, 2.0 * static_cast<double>(i) / static_cast<double>(spec.dims));
    if (spec.scaling == RopeSpec::Scaling::linear) frequency /= spec.factor;
    if (spec.scaling == RopeSpec::Scaling::llama3) frequency = llama3_frequency(frequency, spec);
    frequencies.push_back(static_cast<double>(static_cast<float>(frequency)));
  }
  return frequencies;
}

std::shared_ptr<const RopeTables> make_rope_tables(const std::optional<RopeSpec>& spec,
                                                   std::int64_t positions, DType dtype,
                                                   Memory& memory) {
  auto tables = std::make_shared<RopeTables>();
  if (!spec) return tables;
  const auto frequencies = rope_frequencies(*spec);
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
        cosine[p * pairs + i] = static_cast<T>(std::cos(static_cast<double>(angle)));
        sine[p * pairs + i] = static_cast<T>(std::sin(static_cast<double>(angle)));
      }
    }
  };
  if (dtype == DType::f64) {
    fill(cos_PR.data<double>(), sin_PR.data<double>());
  } else {
    fill(cos_PR.data<float>(), sin_PR.data<float>());
  }
  tables->cos_PR = memory.place(cos_PR, MemoryTag::parameters);
  tables->sin_PR = memory.place(sin_PR, MemoryTag::parameters);
  return tables;
}

}  // namespace heddle
