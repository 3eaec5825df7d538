#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "ops/cpu/router_scores.h"

namespace heddle::ops::cpu {
namespace {

/// What an expert or a group that cannot be chosen (any more) has in place of a key. Keys
/// themselves are never NaN.
template <class T>
constexpr T kTaken = std::numeric_limits<T>::quiet_NaN();

/// The first of the largest keys that are not taken.
template <class T>
std::size_t best_of(std::span<const T> keys) {
  std::size_t best = keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (std::isnan(keys[i])) continue;
    if (best == keys.size() || keys[i] > keys[best]) best = i;
  }
  return best;
}

/// What a group counts as: the sum of its two best keys where there is a bias, else its best.
template <class T>
T group_key(std::span<const T> keys, bool has_bias) {
  T first = -std::numeric_limits<T>::infinity(), second = first;
  for (const T key : keys) {
    if (key > first) {
      second = std::exchange(first, key);
    } else {
      second = std::max(second, key);
    }
  }
  return has_bias && keys.size() > 1 ? first + second : first;
}

/// Takes all experts but those of the best groups.
template <class T>
void keep_best_groups(const RouterRule& rule, bool has_bias, std::span<T> keys) {
  const auto groups = static_cast<std::size_t>(rule.groups);
  const std::size_t size = keys.size() / groups;
  const auto of_group = [&](std::size_t group) { return keys.subspan(group * size, size); };
  for (std::int64_t lost = rule.groups - rule.kept_groups; lost > 0; --lost) {
    std::size_t worst = groups;
    T least = 0;
    for (std::size_t group = 0; group < groups; ++group) {
      if (std::isnan(of_group(group)[0])) continue;
      const T key = group_key<T>(of_group(group), has_bias);
      // Of equal ones the last is lost.
      if (worst == groups || key <= least) {
        worst = group;
        least = key;
      }
    }
    std::ranges::fill(of_group(worst), kTaken<T>);
  }
}

template <class T>
void route_as(const Tensor& logits_TE, const RouterRule& rule, const Tensor& bias_E,
              const Tensor& experts_TK, const Tensor& weights_TK, Stream& stream) {
  const auto K = static_cast<std::size_t>(experts_TK.size(1));
  const T* const bias = bias_E.defined() ? bias_E.data<T>() : nullptr;
  for_tokens<T>(logits_TE, stream, [&](std::int64_t t, auto logits, auto s, auto keys) {
    const std::span<std::int32_t> chosen(
        experts_TK.data<std::int32_t>() + t * static_cast<std::int64_t>(K), K);
    T* const weights = weights_TK.data<T>() + t * static_cast<std::int64_t>(K);
    scores<T>(rule.score, logits, s);
    for (std::size_t e = 0; e < keys.size(); ++e) {
      const T key = bias == nullptr ? s[e] : s[e] + bias[e];
      keys[e] = std::isnan(key) ? -std::numeric_limits<T>::infinity() : key;
    }
    if (rule.groups > 1) keep_best_groups<T>(rule, bias != nullptr, keys);
    for (std::int32_t& expert : chosen) {
      const std::size_t best = best_of<T>(keys);
      keys[best] = kTaken<T>;
      expert = static_cast<std::int32_t>(best);
    }
    // Groups and biases may leave out the largest.
    if (divides_softmax(rule)) chosen_exponentials<T>(logits, chosen, s);
    T sum = 0;
    for (std::size_t k = 0; k < K; ++k) {
      sum += weights[k] = s[static_cast<std::size_t>(chosen[k])];
    }
    if (rule.score == Score::sigmoid) sum += static_cast<T>(kLeastSum);
    const auto scale = static_cast<T>(rule.scale);
    for (std::size_t k = 0; k < K; ++k) {
      weights[k] *= rule.renormalize ? scale / sum : scale;
    }
  });
}

/// dl_i = ds_i/dl_i (G_i - ...), as in the digest of published routers: G the gradient of the
/// weights, which are scores or scores divided by their sum.
template <class T>
void route_backward_as(const Tensor& dweights_TK, const Tensor& logits_TE, const RouterRule& rule,
                       const Tensor& experts_TK, const Tensor& dlogits_TE, Stream& stream) {
  const std::int64_t K = experts_TK.size(1), E = logits_TE.size(1);
  const auto scale = static_cast<T>(rule.scale);
  for_tokens<T>(logits_TE, stream, [&](std::int64_t t, auto logits, auto s, auto ds) {
    const std::int32_t* const chosen = experts_TK.data<std::int32_t>() + t * K;
    const T* const dweights = dweights_TK.data<T>() + t * K;
    T* const dlogits = dlogits_TE.data<T>() + t * E;
    scores_to_weigh<T>(rule, logits, {chosen, static_cast<std::size_t>(K)}, s);
    // The gradient of the scores: of those that were chosen.
    std::ranges::fill(ds, T{0});
    T sum = rule.score == Score::sigmoid ? static_cast<T>(kLeastSum) : T{0}, weighted = 0;
    for (std::int64_t k = 0; k < K; ++k) {
      if (chosen[k] == kAbsentRow) continue;
      const T score = s[static_cast<std::size_t>(chosen[k])];
      sum += score;
      weighted += score * dweights[k];
    }
    for (std::int64_t k = 0; k < K; ++k) {
      if (chosen[k] == kAbsentRow) continue;
      ds[static_cast<std::size_t>(chosen[k])] =
          rule.renormalize ? scale * (dweights[k] - weighted / sum) / sum : scale * dweights[k];
    }
    if (rule.score == Score::sigmoid) {
      for (std::size_t e = 0; e < s.size(); ++e) dlogits[e] = ds[e] * s[e] * (1 - s[e]);
      return;
    }
    T dot = 0;
    if (!rule.renormalize) {  // else it is 0, and those that were not chosen have no gradient
      for (std::size_t e = 0; e < s.size(); ++e) dot += s[e] * ds[e];
    }
    for (std::size_t e = 0; e < s.size(); ++e) dlogits[e] = s[e] * (ds[e] - dot);
  });
}

template <class T>
void router_loss_backward_as(const Tensor& logits_TE, const RouterRule& rule,
                             const Tensor& counts_E1, const RouterLoss& loss,
                             const Tensor& dlogits_TE, Stream& stream) {
  const std::int64_t E = logits_TE.size(1);
  const T* const counts = counts_E1.data<T>();
  const T tokens = std::max(counts[E], T{1});
  const auto balance = static_cast<T>(loss.balance * static_cast<double>(E)) / tokens;
  for_tokens<T>(logits_TE, stream, [&](std::int64_t t, auto logits, auto p, auto s) {
    T* const dlogits = dlogits_TE.data<T>() + t * E;
    const T lse = softmax(logits, p);
    const T of_z = 2 * static_cast<T>(loss.z) * lse;
    for (std::size_t e = 0; e < p.size(); ++e) dlogits[e] += of_z * p[e];
    if (loss.balance == 0.0) return;
    T sum = 1;
    if (rule.score == Score::sigmoid) {
      sigmoids(logits, s);
      sum = static_cast<T>(kLeastSum);
      for (const T score : s) sum += score;
      for (std::size_t e = 0; e < p.size(); ++e) p[e] = s[e] / sum;
    }
    T mean = 0;
    for (std::size_t e = 0; e < p.size(); ++e) mean += p[e] * counts[e];
    for (std::size_t e = 0; e < p.size(); ++e) {
      const T slope = rule.score == Score::sigmoid ? s[e] * (1 - s[e]) / sum : p[e];
      dlogits[e] += balance * slope * (counts[e] - mean);
    }
  });
}

void check_expert(std::int32_t expert, std::int64_t experts) {
  HEDDLE_CHECK(expert == kAbsentRow || (expert >= 0 && expert < experts), "expert {} of {}", expert,
               experts);
}

}  // namespace

void route(const Tensor& logits_TE, const RouterRule& rule, const Tensor& bias_E,
           const Tensor& experts_TK, const Tensor& weights_TK, Stream& stream) {
  visit_float(logits_TE.dtype(), [&](auto zero) {
    route_as<decltype(zero)>(logits_TE, rule, bias_E, experts_TK, weights_TK, stream);
  });
}

void route_backward(const Tensor& dweights_TK, const Tensor& logits_TE, const RouterRule& rule,
                    const Tensor& experts_TK, const Tensor& dlogits_TE, Stream& stream) {
  visit_float(logits_TE.dtype(), [&](auto zero) {
    route_backward_as<decltype(zero)>(dweights_TK, logits_TE, rule, experts_TK, dlogits_TE, stream);
  });
}

void router_loss_backward(const Tensor& logits_TE, const RouterRule& rule, const Tensor& counts_E1,
                          const RouterLoss& loss, const Tensor& dlogits_TE, Stream& stream) {
  visit_float(logits_TE.dtype(), [&](auto zero) {
    router_loss_backward_as<decltype(zero)>(logits_TE, rule, counts_E1, loss, dlogits_TE, stream);
  });
}

void count_choices(const Tensor& experts_TK, const Tensor& counts_E1, Stream&) {
  visit_float(counts_E1.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t experts = counts_E1.count() - 1;
    const auto counts = counts_E1.host<T>();
    std::ranges::fill(counts, T{0});
    for (const std::int32_t expert : experts_TK.host<std::int32_t>()) {
      check_expert(expert, experts);
      if (expert != kAbsentRow) counts[static_cast<std::size_t>(expert)] += 1;
    }
    counts.back() = static_cast<T>(experts_TK.size(0));
  });
}

void order_by_expert(const Tensor& experts_TK, const Tensor& offsets_E1, const Tensor& token_R,
                     const Tensor& row_TK, Stream&) {
  const auto experts = experts_TK.host<std::int32_t>();
  const auto offsets = offsets_E1.host<std::int32_t>(), tokens = token_R.host<std::int32_t>(),
             rows = row_TK.host<std::int32_t>();
  const auto K = static_cast<std::size_t>(experts_TK.size(1));
  std::ranges::fill(offsets, 0);
  for (const std::int32_t expert : experts) {
    check_expert(expert, offsets_E1.count() - 1);
    if (expert != kAbsentRow) ++offsets[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  std::vector<std::int32_t> next(offsets.begin(), offsets.end());
  std::ranges::fill(tokens, kAbsentRow);
  for (std::size_t choice = 0; choice < experts.size(); ++choice) {
    if (experts[choice] == kAbsentRow) {
      rows[choice] = kAbsentRow;
      continue;
    }
    const std::int32_t row = next[static_cast<std::size_t>(experts[choice])]++;
    rows[choice] = row;
    tokens[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(choice / K);
  }
}

void pick_numbers(const Tensor& numbers, const Tensor& index, const Tensor& picked, Stream&) {
  const auto from = numbers.host<std::int32_t>();
  std::ranges::transform(index.host<std::int32_t>(), picked.host<std::int32_t>().begin(),
                         [&](std::int32_t at) {
                           HEDDLE_CHECK(at == kAbsentRow || (at >= 0 && at < numbers.count()),
                                        "number {} of {}", at, numbers.count());
                           return at == kAbsentRow ? at : from[static_cast<std::size_t>(at)];
                         });
}

}  // namespace heddle::ops::cpu
