#include "ops/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/backend.h"
#include "ops/cpu/router_scores.h"
#include "ops/embedding.h"
#include "ops/operands.h"

namespace heddle::ops {
namespace {

using cpu::Score;

void check_here(const Stream& stream, const char* what) {
  if (stream.device().kind == Device::Kind::cpu) return;
  throw Error(ErrorCode::usage, fmt::format("{} of experts does not run on a GPU yet", what),
              "use the CPU, or leave it out of the model");
}

/// Values by which choices are put in order: a NaN is the lowest.
template <class T>
T orderly(T value) {
  return std::isnan(value) ? -std::numeric_limits<T>::infinity() : value;
}

template <class T>
void weigh_as(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
              const Tensor& weights_TK, Stream& stream) {
  const std::int64_t K = experts_TK.size(1);
  const auto scale = static_cast<T>(rule.scale);
  cpu::for_tokens<T>(logits_TE, stream, [&](std::int64_t t, auto logits, auto s, auto) {
    const std::int32_t* const chosen = experts_TK.data<std::int32_t>() + t * K;
    T* const weights = weights_TK.data<T>() + t * K;
    cpu::scores_to_weigh<T>(rule, logits, {chosen, static_cast<std::size_t>(K)}, s);
    T sum = 0;
    for (std::int64_t k = 0; k < K; ++k) {
      weights[k] = chosen[k] == kAbsentRow ? T{0} : s[static_cast<std::size_t>(chosen[k])];
      sum += weights[k];
    }
    if (rule.score == Score::sigmoid) sum += static_cast<T>(cpu::kLeastSum);
    for (std::int64_t k = 0; k < K; ++k) {
      if (chosen[k] != kAbsentRow) weights[k] *= rule.renormalize ? scale / sum : scale;
    }
  });
}

/// Indices of choices in the order in which they take their places.
template <class T>
class Queue {
 public:
  Queue(const Tensor& scores_TK, const TokenDraw& draw)
      : tokens_(static_cast<std::size_t>(scores_TK.size(0))),
        slots_(static_cast<std::size_t>(scores_TK.size(1))),
        draw_(draw) {
    for (const T score : scores_TK.host<T>()) scores_.push_back(orderly(score));
    order_.reserve(scores_.size());
  }

  const std::vector<std::size_t>& by(Victims victims) {
    if (victims == Victims::late_slots || victims == Victims::unsure) {
      by_slots(victims == Victims::unsure);
      return order_;
    }
    order_.resize(scores_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    if (victims == Victims::low_scores) by_key(scores_);
    if (victims == Victims::random) by_key(drawn());
    return order_;
  }

 private:
  void by_slots(bool surest_first) {
    std::vector<std::size_t> tokens(tokens_);
    std::iota(tokens.begin(), tokens.end(), std::size_t{0});
    if (surest_first) {
      std::vector<T> best;
      for (std::size_t t = 0; t < tokens_; ++t) {
        const auto own = std::span(scores_).subspan(t * slots_, slots_);
        best.push_back(*std::ranges::max_element(own));
      }
      std::ranges::stable_sort(tokens,
                               [&](std::size_t a, std::size_t b) { return best[a] > best[b]; });
    }
    for (std::size_t k = 0; k < slots_; ++k) {
      for (const std::size_t t : tokens) order_.push_back(t * slots_ + k);
    }
  }

  template <class Key>
  void by_key(const std::vector<Key>& key) {
    std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) { return key[a] > key[b]; });
  }

  std::vector<std::uint64_t> drawn() const {
    HEDDLE_CHECK(draw_.numbers.size() == tokens_, "{} numbers of {} tokens", draw_.numbers.size(),
                 tokens_);
    std::vector<std::uint64_t> key;
    for (const std::uint64_t number : draw_.numbers) {
      for (std::size_t k = 0; k < slots_; ++k) {
        key.push_back(random_u64(draw_.key, number * slots_ + k));
      }
    }
    return key;
  }

  const std::size_t tokens_, slots_;
  const TokenDraw& draw_;
  std::vector<T> scores_;
  std::vector<std::size_t> order_;
};

template <class T>
void choose_tokens_as(const Tensor& logits_TE, std::int64_t capacity, const Tensor& experts_TE,
                      Stream& stream) {
  const auto T_ = static_cast<std::size_t>(logits_TE.size(0)),
             E = static_cast<std::size_t>(logits_TE.size(1));
  std::vector<T> key(T_ * E);
  cpu::for_tokens<T>(logits_TE, stream, [&](std::int64_t t, auto logits, auto s, auto) {
    cpu::softmax<T>(logits, s);
    std::ranges::transform(s, key.begin() + t * logits_TE.size(1), orderly<T>);
  });
  const auto chosen = experts_TE.host<std::int32_t>();
  std::ranges::fill(chosen, kAbsentRow);
  const std::size_t taken = std::min(T_, static_cast<std::size_t>(capacity));
  std::vector<std::size_t> tokens(T_);
  for (std::size_t e = 0; e < E; ++e) {
    std::iota(tokens.begin(), tokens.end(), std::size_t{0});
    std::ranges::stable_sort(
        tokens, [&](std::size_t a, std::size_t b) { return key[a * E + e] > key[b * E + e]; });
    for (std::size_t i = 0; i < taken; ++i) {
      chosen[tokens[i] * E + e] = static_cast<std::int32_t>(e);
    }
  }
}

/// Scales rows and columns of exp(gain * logits), each row divided by its largest: a factor of the
/// row that the row's own scale takes up, so that nothing overflows.
class TransportPlan {
 public:
  template <class T>
  TransportPlan(std::span<const T> logits, std::size_t experts, const SinkhornRule& rule)
      : experts_(experts),
        tokens_(logits.size() / experts),
        kernel_(logits.size()),
        of_row_(tokens_, 1.0),
        of_column_(experts) {
    for (std::size_t t = 0; t < tokens_; ++t) {
      const auto row = logits.subspan(t * experts, experts);
      double largest = -std::numeric_limits<double>::infinity();
      for (const T logit : row) largest = std::max(largest, orderly(double{logit}));
      if (!std::isfinite(largest)) continue;  // such a token moves nobody
      for (std::size_t e = 0; e < experts; ++e) {
        if (std::isnan(row[e])) continue;
        kernel_[t * experts + e] = std::exp(rule.gain * (double{row[e]} - largest));
      }
    }
    // BlackMamba's beginning: as if rows were in balance.
    scale_columns();
    for (int pass = 0; pass < rule.passes; ++pass) {
      scale_rows();
      const std::vector<double> before = of_column_;
      scale_columns();
      double change = 0.0, all = 0.0;
      for (std::size_t e = 0; e < experts; ++e) {
        change += std::abs(of_column_[e] - before[e]);
        all += std::abs(of_column_[e]);
      }
      if (change <= rule.tolerance * all) break;
    }
  }

  /// Of a row of the plan, up to the row's factor, which changes no order in it.
  double at(std::size_t token, std::size_t expert) const {
    return kernel_[token * experts_ + expert] * of_column_[expert];
  }

 private:
  static constexpr double kLeast = 1e-30;  // no column without any token divides by 0

  void scale_rows() {
    for (std::size_t t = 0; t < tokens_; ++t) {
      double sum = 0.0;
      for (std::size_t e = 0; e < experts_; ++e) sum += at(t, e);
      of_row_[t] = 1.0 / (static_cast<double>(tokens_) * std::max(sum, kLeast));
    }
  }
  void scale_columns() {
    std::vector<double> sum(experts_, 0.0);
    for (std::size_t t = 0; t < tokens_; ++t) {
      for (std::size_t e = 0; e < experts_; ++e) sum[e] += of_row_[t] * kernel_[t * experts_ + e];
    }
    for (std::size_t e = 0; e < experts_; ++e) {
      of_column_[e] = 1.0 / (static_cast<double>(experts_) * std::max(sum[e], kLeast));
    }
  }

  const std::size_t experts_, tokens_;
  std::vector<double> kernel_, of_row_, of_column_;
};

double drawn_of(Noise noise, std::uint64_t key, std::uint64_t index) {
  if (noise == Noise::gaussian) return random_normal(key, index);
  // In (0, 1): no logarithm of 0.
  const double uniform = random_uniform(key, index) + 0x1p-54;
  return -std::log(-std::log(uniform));
}

}  // namespace

namespace cpu {

void weigh_choices(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK, Stream& stream) {
  visit_float(logits_TE.dtype(), [&](auto zero) {
    weigh_as<decltype(zero)>(logits_TE, rule, experts_TK, weights_TK, stream);
  });
}

void drop_choices(const Tensor& scores_TK, Victims victims, std::int64_t capacity,
                  const TokenDraw& draw, std::int64_t experts, const Tensor& experts_TK, Stream&) {
  const auto chosen = experts_TK.host<std::int32_t>();
  std::vector<std::int64_t> taken(static_cast<std::size_t>(experts), 0);
  visit_float(scores_TK.dtype(), [&](auto zero) {
    Queue<decltype(zero)> queue(scores_TK, draw);
    for (const std::size_t choice : queue.by(victims)) {
      if (chosen[choice] == kAbsentRow) continue;
      std::int64_t& of_expert = taken[static_cast<std::size_t>(chosen[choice])];
      if (of_expert < capacity) {
        ++of_expert;
      } else {
        chosen[choice] = kAbsentRow;
      }
    }
  });
}

void add_load(const Tensor& made_TK, const Tensor& kept_TK, const Tensor& load, Stream&) {
  const auto made = made_TK.host<std::int32_t>(), kept = kept_TK.host<std::int32_t>();
  const auto counts = load.host<double>();
  const std::size_t E = counts.size() - 2, K = static_cast<std::size_t>(made_TK.size(1));
  double lost = 0.0, unheard = 0.0;
  for (std::size_t first = 0; first < made.size(); first += K) {
    std::size_t of_token = 0, left = 0;
    for (std::size_t i = first; i < first + K; ++i) {
      if (made[i] == kAbsentRow) continue;
      HEDDLE_CHECK(made[i] >= 0 && static_cast<std::size_t>(made[i]) < E, "expert {} of {}",
                   made[i], E);
      counts[static_cast<std::size_t>(made[i])] += 1.0;
      ++of_token;
      left += kept[i] == kAbsentRow ? 0 : 1;
    }
    lost += static_cast<double>(of_token - left);
    unheard += left == 0 ? 1.0 : 0.0;
  }
  counts[E] += lost;
  counts[E + 1] += unheard;
}

void counts_of_load(const Tensor& load, std::int64_t per_token, const Tensor& counts_E1, Stream&) {
  const auto loads = load.host<double>().first(static_cast<std::size_t>(counts_E1.count()) - 1);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  visit_float(counts_E1.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto counts = counts_E1.host<T>();
    for (std::size_t e = 0; e < loads.size(); ++e) {
      counts[e] =
          sum == 0.0 ? T{0} : static_cast<T>(loads[e] * static_cast<double>(per_token) / sum);
    }
    counts.back() = 1;
  });
}

void count_by_sequence(const Tensor& experts_TK, const Tensor& sequence_T, std::int64_t slots,
                       const Tensor& counts_SE1, Stream&) {
  const auto experts = experts_TK.host<std::int32_t>(), sequences = sequence_T.host<std::int32_t>();
  const auto K = static_cast<std::size_t>(experts_TK.size(1)),
             row = static_cast<std::size_t>(counts_SE1.size(1));
  visit_float(counts_SE1.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto counts = counts_SE1.host<T>();
    std::ranges::fill(counts, T{0});
    for (std::size_t t = 0; t < sequences.size(); ++t) {
      const auto own = counts.subspan(static_cast<std::size_t>(sequences[t]) * row, row);
      for (std::size_t k = 0; k < std::min(K, static_cast<std::size_t>(slots)); ++k) {
        const std::int32_t expert = experts[t * K + k];
        if (expert != kAbsentRow) own[static_cast<std::size_t>(expert)] += 1;
      }
      own.back() += 1;
    }
  });
}

void balance_bias(const Tensor& load_E, double rate, const Tensor& clip, std::int64_t begin,
                  const Tensor& bias, Stream&) {
  if (!std::isfinite(clip.host<float>()[0])) return;
  const auto load = load_E.host<double>();
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  visit_float(bias.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto biases = bias.host<T>();
    for (std::size_t i = 0; i < biases.size(); ++i) {
      // In whole numbers, which the mean need not be.
      const double more =
          sum - load[static_cast<std::size_t>(begin) + i] * static_cast<double>(load.size());
      if (more != 0.0) biases[i] += static_cast<T>(more > 0.0 ? rate : -rate);
    }
  });
}

}  // namespace cpu

void choose_tokens(const Tensor& logits_TE, std::int64_t capacity, const Tensor& experts_TE,
                   Stream& stream) {
  check_choices(experts_TE, {});
  check_like(logits_TE, experts_TE.shape(), logits_TE.dtype());
  if (stream.is_dry()) return;
  check_here(stream, "choosing tokens");
  cpu::visit_float(logits_TE.dtype(), [&](auto zero) {
    choose_tokens_as<decltype(zero)>(logits_TE, capacity, experts_TE, stream);
  });
}

void choose_by_plan(const Tensor& logits_TE, const SinkhornRule& rule, const Tensor& experts_TK,
                    Stream& stream) {
  check_choices(experts_TK, {});
  check_flat({&logits_TE});
  const auto E = static_cast<std::size_t>(logits_TE.size(1)),
             K = static_cast<std::size_t>(experts_TK.size(1));
  HEDDLE_CHECK(logits_TE.size(0) == experts_TK.size(0) && K <= E, "{} of the experts in {}", K,
               logits_TE.shape().text());
  if (stream.is_dry()) return;
  check_here(stream, "a transport plan");
  cpu::visit_float(logits_TE.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const TransportPlan plan(std::span<const T>(logits_TE.host<T>()), E, rule);
    const auto chosen = experts_TK.host<std::int32_t>();
    std::vector<std::int32_t> order(E);
    for (std::size_t t = 0; t < chosen.size() / std::max<std::size_t>(K, 1); ++t) {
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
        return plan.at(t, static_cast<std::size_t>(a)) > plan.at(t, static_cast<std::size_t>(b));
      });
      std::copy_n(order.begin(), K, chosen.begin() + static_cast<std::ptrdiff_t>(t * K));
    }
  });
}

void add_noise(const Tensor& logits_TE, Noise noise, double scale, const TokenDraw& draw,
               Stream& stream) {
  check_flat({&logits_TE});
  if (stream.is_dry() || noise == Noise::none) return;
  check_here(stream, "noise on the choice");
  const auto E = static_cast<std::size_t>(logits_TE.size(1));
  HEDDLE_CHECK(draw.numbers.size() * E == static_cast<std::size_t>(logits_TE.count()),
               "{} numbers of the tokens in {}", draw.numbers.size(), logits_TE.shape().text());
  cpu::visit_float(logits_TE.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto logits = logits_TE.host<T>();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] +=
          static_cast<T>(scale * drawn_of(noise, draw.key, draw.numbers[i / E] * E + i % E));
    }
  });
}

}  // namespace heddle::ops
