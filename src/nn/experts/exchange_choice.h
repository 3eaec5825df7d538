#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "nn/experts/exchange_plan.h"

namespace heddle {

/// Chooses how the experts of a rank exchange (Tutel's dictionary, moe.md 3.6). Layers share one,
/// and all ranks that exchange with each other ask it for the same calls in the same order and tell
/// it the same times, so they choose alike without a call of their own.
///
/// One that learns remembers for each capacity (rows of the fullest expert from one rank, in steps
/// of 128) how long every plan took on the slowest rank, searches them (r by ternary search, with
/// 0 and etp, for every degree and algorithm) and then keeps to the fastest.
class ExchangeChoice {
 public:
  explicit ExchangeChoice(const ExchangeRequest& request, int etp = 1, int ep = 1);

  /// The plan of the next call.
  ExchangePlan next(std::int64_t capacity);
  /// Of a call of which nothing is known: what plans count on.
  const ExchangePlan& usual() const { return plans_.front(); }
  /// Whether times are wanted.
  bool learns() const { return learns_; }
  /// How long the last call took on this rank. The ranks tell each other with the next one:
  void took(double seconds);
  std::int32_t microseconds() const { return microseconds_; }
  /// what the slowest of them said. Does nothing before the first.
  void learn(std::int32_t slowest);

  /// What was found best, by capacity / 128; those that are still searched are absent.
  std::map<std::int64_t, ExchangePlan> dictionary() const;
  /// Calls that a capacity is tried with at most.
  std::size_t most_trials() const;

 private:
  using Times = std::vector<std::pair<ExchangePlan, std::int32_t>>;
  /// The next plan to try, or that all were and which one is best.
  struct Found {
    std::optional<ExchangePlan> untried, best;
  };
  Found search(const Times& times) const;

  const std::vector<ExchangePlan> plans_;  ///< from call to call; one where it learns
  const bool learns_;
  const int etp_, ep_;
  std::size_t turn_ = 0;
  std::map<std::int64_t, Times> times_;
  std::int32_t microseconds_ = 0;
  /// The call whose time is not yet known to all.
  struct Trial {
    std::int64_t key;
    ExchangePlan plan;
  };
  std::optional<Trial> trial_;
};

}  // namespace heddle
