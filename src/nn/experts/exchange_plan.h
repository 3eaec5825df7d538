#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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
  /// Rows that came for this rank's experts are not kept for the gradients of weights: they come
  /// once more in backward. What a layer keeps then does not grow with the experts of a token.
  bool sends_again = false;

  bool operator==(const ExchangePlan&) const = default;
  /// "r=2 degree=4/2 2dh=8 networks=1 rows=again".
  std::string text() const;
};

/// parallel.ep_exchange: which plan, before it is known how many ranks divide experts. A few bits,
/// since every request and every layout that the planner tries has one.
class ExchangeRequest {
 public:
  /// Each row goes to all ranks of etp, in one piece.
  constexpr ExchangeRequest() = default;
  /// A plan for `etp` ranks.
  explicit ExchangeRequest(const ExchangePlan& plan, int etp);
  /// "r=2 degree=4/2 2dh=8 networks=1 rows=again", each of which may be left out, and with them
  /// "adaptive" or "turns"; or degree=planned; and windows=planned. Error(usage) for a text with
  /// problems.
  ExchangeRequest(const char* text) : ExchangeRequest(std::string(text)) {}
  ExchangeRequest(const std::string& text);

  /// What cannot be read of a text; empty: nothing.
  static std::string problem_in(const std::string& text);
  /// What is wrong where `ep` ranks have other experts and `etp` other parts of them; empty:
  /// nothing. Otherwise names what to change.
  std::string problem_on(int ep, int etp) const;

  /// The plan for `etp` ranks; the one to begin with where there are several.
  ExchangePlan plan(int etp) const;
  /// All plans are tried, and the fastest is kept to.
  bool learns() const { return mode_ == kLearns; }
  /// Every call has another plan: all there are (turns_of), for checks.
  bool takes_turns() const { return mode_ == kTurns; }
  /// Degrees are to be chosen before the run, by a machine's times (planner/predicted_step.h).
  bool leaves_degrees() const { return mode_ == kPlanned; }
  /// Sums of gradients go where the network is idle, as is planned before the run (SumWindows).
  bool plans_windows() const { return plans_windows_ == 1U; }
  /// Whether it has to be planned by a machine's times.
  bool is_to_be_planned() const { return leaves_degrees() || plans_windows(); }
  /// The same with these degrees.
  ExchangeRequest with_degrees(int forward, int backward) const;
  /// Nothing was asked for.
  bool is_usual() const { return *this == ExchangeRequest(); }
  /// What reads back as the same; "" of the usual one.
  std::string text() const;
  bool operator==(const ExchangeRequest&) const = default;

 private:
  enum Mode : std::uint32_t { kNamed, kLearns, kTurns, kPlanned };
  static constexpr std::uint32_t kAllOfEtp = (1U << 9) - 1;
  /// What is wrong with the text; empty: nothing.
  std::string read(const std::string& text);
  // Leave the first problem in `problem`.
  void take_mode(Mode mode, std::string& problem);
  void read_word(std::string_view word, std::string& problem);
  void read_r(std::string_view value, std::string& problem);
  void read_degree(std::string_view value, std::string& problem);
  void read_node(std::string_view value, std::string& problem);
  void read_networks(std::string_view value, std::string& problem);
  void read_windows(std::string_view value, std::string& problem);
  void read_rows(std::string_view value, std::string& problem);

  std::uint32_t r_ : 9 = kAllOfEtp;
  std::uint32_t more_forward_ : 5 = 0, more_backward_ : 5 = 0;  // pieces than one
  std::uint32_t node_ : 8 = 1;
  std::uint32_t is_one_network_ : 1 = 0;
  std::uint32_t mode_ : 2 = kNamed;
  std::uint32_t plans_windows_ : 1 = 0;
  std::uint32_t sends_again_ : 1 = 0;
};
static_assert(sizeof(ExchangeRequest) == 4);

/// All r, both algorithms where `node` is above 1, degrees that differ between the passes, and rows
/// that are kept or sent again.
std::vector<ExchangePlan> turns_of(int etp, int node);

/// 1, ..., n: all that divide n.
std::vector<int> divisors_of(int n);

}  // namespace heddle
