#pragma once

#include <string>
#include <vector>

namespace heddle {

/// How rows and weights of experts meet in one layer and micro-batch (Tutel;
/// docs/design/040-experts.md). Weights lie the same whatever it says, so it may change from one
/// call to the next. All ranks that exchange have the same one.
struct ExchangePlan {
  /// Each row goes to r ranks of etp, each of which has an r-th of the width: it gathers the shards
  /// of etp / r neighbours. etp: no weights travel. 1: each row goes to one rank. 0: rows stay
  /// where they are, and all weights come to all ranks.
  int r = 1;
  /// Pieces that rows are cut into between order and inverse order, in either pass: one travels
  /// while another is computed.
  int degree_forward = 1, degree_backward = 1;
  /// Above 1: all-to-alls over ep go in two levels, first within so many neighbours.
  int node = 1;
  /// 2: exchanges over etp go beside those over ep. 1: all of them follow each other, as where both
  /// are on one wire.
  int networks = 2;

  bool operator==(const ExchangePlan&) const = default;
  /// "r=2 degree=4/2 2dh=8 networks=1".
  std::string text() const;
};

/// parallel.ep_exchange.
struct ExchangeRequest {
  std::vector<ExchangePlan> turns;  ///< from call to call; the first of them when it learns
  bool learns = false;

  /// What is wrong with the text where `ep` ranks have other experts and `etp` other parts of them;
  /// empty: nothing. Otherwise names what to change.
  static std::string problem_in(const std::string& text, int ep, int etp);
  /// Of a text without problems.
  static ExchangeRequest parse(const std::string& text, int etp);
};

/// 1, ..., n: all that divide n.
std::vector<int> divisors_of(int n);

}  // namespace heddle
