#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/embedding.h"
#include "ops/experts.h"

namespace heddle::ops::cpu {

using Score = RouterRule::Score;

/// As DeepSeek-V3 divides: a sum of sigmoids may be 0.
constexpr double kLeastSum = 1e-20;

/// The softmax of the logits; returns the logarithm of the sum of their exponentials.
template <class T>
T softmax(std::span<const T> logits, std::span<T> p) {
  const T largest = *std::ranges::max_element(logits);
  T sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) sum += p[e] = std::exp(logits[e] - largest);
  for (T& value : p) value /= sum;
  return largest + std::log(sum);
}

template <class T>
void sigmoids(std::span<const T> logits, std::span<T> s) {
  std::ranges::transform(logits, s.begin(), [](T x) {
    const T small = std::exp(-std::abs(x));
    return x < 0 ? small / (1 + small) : 1 / (1 + small);
  });
}

template <class T>
void scores(Score score, std::span<const T> logits, std::span<T> s) {
  if (score == Score::sigmoid) {
    sigmoids(logits, s);
  } else {
    softmax(logits, s);
  }
}

/// Whether weights are a softmax divided by its sum over those that were chosen. The sum over all
/// cancels then, and may be so large beside them that nothing of them is left.
inline bool divides_softmax(const RouterRule& rule) {
  return rule.score == Score::softmax && rule.renormalize;
}

/// In place of scores where only those of the chosen count, and only beside each other: the largest
/// of these is 1; 0 for all others.
template <class T>
void chosen_exponentials(std::span<const T> logits, std::span<const std::int32_t> chosen,
                         std::span<T> s) {
  const auto of = [](std::int32_t expert) { return static_cast<std::size_t>(expert); };
  T largest = -std::numeric_limits<T>::infinity();
  for (const std::int32_t expert : chosen) {
    if (expert != kAbsentRow) largest = std::max(largest, logits[of(expert)]);
  }
  std::ranges::fill(s, T{0});
  for (const std::int32_t expert : chosen) {
    if (expert != kAbsentRow) s[of(expert)] = std::exp(logits[of(expert)] - largest);
  }
}

/// What the chosen experts are weighed by.
template <class T>
void scores_to_weigh(const RouterRule& rule, std::span<const T> logits,
                     std::span<const std::int32_t> chosen, std::span<T> s) {
  if (divides_softmax(rule)) {
    chosen_exponentials(logits, chosen, s);
  } else {
    scores(rule.score, logits, s);
  }
}

/// Calls body(token, its logits, two rows of E values to use) for all tokens.
template <class T, class Body>
void for_tokens(const Tensor& logits_TE, Stream& stream, const Body& body) {
  const std::int64_t experts = logits_TE.size(1);
  const auto E = static_cast<std::size_t>(experts);
  const T* const logits = logits_TE.data<T>();
  parallel_for(stream, logits_TE.size(0), kGrain / std::max<std::int64_t>(8 * experts, 1) + 1,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const own =
                     reinterpret_cast<T*>(Scratch::of_this_thread().at_least(2 * E * sizeof(T)));
                 for (std::int64_t t = begin; t < end; ++t) {
                   body(t, std::span<const T>(logits + t * experts, E), std::span<T>(own, E),
                        std::span<T>(own + E, E));
                 }
               });
}

}  // namespace heddle::ops::cpu
