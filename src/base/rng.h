#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace heddle {

/// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): every value is a pure
/// function of (key, index), so initial weights, dropout and data order do not depend on threads,
/// ranks or history.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high = 0);

/// A key for one purpose: mixes a seed with a name ("model.embed_tokens.weight") or a number.
std::uint64_t rng_key(std::uint64_t seed, std::string_view purpose);
std::uint64_t rng_key(std::uint64_t seed, std::uint64_t purpose);

std::uint64_t random_u64(std::uint64_t key, std::uint64_t index);
/// Uniform in [0, 1) with 53 bits.
double random_uniform(std::uint64_t key, std::uint64_t index);
/// Standard normal (Box-Muller on one Philox block).
double random_normal(std::uint64_t key, std::uint64_t index);

/// A pseudo-random permutation of [0, size) evaluated pointwise (a Feistel network walked until it
/// lands inside), so that a shuffled order needs no memory and no state.
std::uint64_t random_permutation(std::uint64_t key, std::uint64_t index, std::uint64_t size);

}  // namespace heddle
