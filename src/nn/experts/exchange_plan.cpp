#include "nn/experts/exchange_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/strings.h"

namespace heddle {
namespace {

constexpr std::string_view kAdaptive = "adaptive", kTurnsWord = "turns", kPlannedValue = "planned",
                           kAgain = "again";
constexpr int kMostPieces = 32, kMostRanks = 510, kMostNeighbours = 255;

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

/// "1, 2, 4".
std::string list(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ", "));
}

/// The first problem is told.
template <class... Args>
void refuse(std::string& problem, fmt::format_string<Args...> format, Args&&... args) {
  if (problem.empty()) problem = fmt::format(format, std::forward<Args>(args)...);
}

/// "r=2", "degree=4/2", "2dh=8": what is not as in a plain all-to-all.
std::vector<std::string> words_of(const ExchangePlan& plan, bool names_r) {
  std::vector<std::string> words;
  const auto& [r, forward, backward, node, networks, sends_again] = plan;
  if (names_r) words.push_back(fmt::format("r={}", r));
  if (forward != backward) {
    words.push_back(fmt::format("degree={}/{}", forward, backward));
  } else if (forward > 1) {
    words.push_back(fmt::format("degree={}", forward));
  }
  if (node > 1) words.push_back(fmt::format("2dh={}", node));
  if (networks == 1) words.emplace_back("networks=1");
  if (sends_again) words.push_back(fmt::format("rows={}", kAgain));
  return words;
}

}  // namespace

std::string ExchangePlan::text() const {
  return fmt::format("{}", fmt::join(words_of(*this, true), " "));
}

ExchangeRequest::ExchangeRequest(const ExchangePlan& plan, int etp)
    : r_(plan.r == etp ? kAllOfEtp : static_cast<std::uint32_t>(plan.r) & kAllOfEtp),
      more_forward_(static_cast<std::uint32_t>(plan.degree_forward - 1) & 31U),
      more_backward_(static_cast<std::uint32_t>(plan.degree_backward - 1) & 31U),
      node_(static_cast<std::uint32_t>(plan.node) & 255U),
      is_one_network_(plan.networks == 1 ? 1U : 0U),
      sends_again_(plan.sends_again ? 1U : 0U) {
  HEDDLE_CHECK(this->plan(etp) == plan, "a plan that no text has: {}", plan.text());
}

ExchangeRequest::ExchangeRequest(const std::string& text) {
  const std::string problem = read(text);
  if (problem.empty()) return;
  throw Error(ErrorCode::usage, fmt::format("parallel.ep_exchange = \"{}\": {}", text, problem),
              "");
}

std::string ExchangeRequest::problem_in(const std::string& text) {
  return ExchangeRequest().read(text);
}

std::string ExchangeRequest::read(const std::string& text) {
  std::string problem;
  std::vector<std::string> keys;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::string key = word.substr(0, word.find('='));
    if (std::ranges::find(keys, key) != keys.end()) {
      refuse(problem, "{} is given twice; leave out one of them", key);
    }
    keys.push_back(key);
    read_word(word, problem);
  }
  if (plans_windows() && (learns() || takes_turns())) {
    refuse(problem, "windows=planned is for degrees that stay; name them, or use degree=planned");
  }
  return problem;
}

void ExchangeRequest::read_word(std::string_view word, std::string& problem) {
  if (word == kAdaptive) return take_mode(kLearns, problem);
  if (word == kTurnsWord) return take_mode(kTurns, problem);
  const std::size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals),
                         value = equals == word.npos ? "" : word.substr(equals + 1);
  if (key == "r") return read_r(value, problem);
  if (key == "degree") return read_degree(value, problem);
  if (key == "2dh") return read_node(value, problem);
  if (key == "networks") return read_networks(value, problem);
  if (key == "windows") return read_windows(value, problem);
  if (key == "rows") return read_rows(value, problem);
  refuse(problem,
         "\"{}\" is none of r=N, degree=N, degree=N/M, degree=planned, 2dh=N, networks=N, "
         "windows=planned, rows=again, adaptive and turns",
         word);
}

void ExchangeRequest::take_mode(Mode mode, std::string& problem) {
  if (mode_ != kNamed && mode_ != mode) {
    return refuse(problem, "adaptive, turns and degree=planned each choose degrees; use one");
  }
  mode_ = static_cast<std::uint32_t>(mode) & 3U;
}

void ExchangeRequest::read_r(std::string_view value, std::string& problem) {
  const auto r = number_in(value);
  if (!r || *r > kMostRanks) {
    return refuse(problem, "r={}; use 0 or a divisor of parallel.etp up to {}", value, kMostRanks);
  }
  r_ = static_cast<std::uint32_t>(*r) & kAllOfEtp;
}

void ExchangeRequest::read_degree(std::string_view value, std::string& problem) {
  if (value == kPlannedValue) return take_mode(kPlanned, problem);
  const std::size_t slash = value.find('/');
  const auto forward = number_in(value.substr(0, slash)),
             backward = slash == value.npos ? forward : number_in(value.substr(slash + 1));
  for (const auto& degree : {forward, backward}) {
    if (!degree || *degree < 1 || *degree > kMostPieces) {
      return refuse(problem,
                    "degree={}; use 1 to {} pieces, degree=N/M for forward and backward, or "
                    "degree=planned",
                    value, kMostPieces);
    }
  }
  more_forward_ = static_cast<std::uint32_t>(*forward - 1) & 31U;
  more_backward_ = static_cast<std::uint32_t>(*backward - 1) & 31U;
}

void ExchangeRequest::read_node(std::string_view value, std::string& problem) {
  const auto node = number_in(value);
  if (!node || *node < 1 || *node > kMostNeighbours) {
    return refuse(problem, "2dh={}; use a divisor of parallel.ep up to {}", value, kMostNeighbours);
  }
  node_ = static_cast<std::uint32_t>(*node) & 255U;
}

void ExchangeRequest::read_networks(std::string_view value, std::string& problem) {
  const auto networks = number_in(value);
  if (networks != 1 && networks != 2) {
    return refuse(
        problem, "networks={}; use 2 where ep and etp exchange at the same time, 1 in turn", value);
  }
  is_one_network_ = *networks == 1 ? 1U : 0U;
}

void ExchangeRequest::read_windows(std::string_view value, std::string& problem) {
  if (value != kPlannedValue) return refuse(problem, "windows={}; use windows=planned", value);
  plans_windows_ = 1;
}

void ExchangeRequest::read_rows(std::string_view value, std::string& problem) {
  if (value != kAgain) return refuse(problem, "rows={}; use rows=again", value);
  sends_again_ = 1;
}

std::string ExchangeRequest::problem_on(int ep, int etp) const {
  const int r = plan(etp).r, node = plan(etp).node;
  if (r == 0 && plans_windows()) {
    return "windows=planned is for time between exchanges of rows, and with r=0 rows stay; leave "
           "out one of them";
  }
  if (r == 0 && sends_again_ == 1U) {
    return "rows=again is for rows that travel, and with r=0 they stay; leave out one of them";
  }
  if (r > 0 && etp % r != 0) {
    return fmt::format("r={} is neither 0 nor a divisor of parallel.etp = {}; use 0, {}", r, etp,
                       list(divisors_of(etp)));
  }
  if (ep % node != 0) {
    return fmt::format("2dh={} does not divide parallel.ep = {}; use {}", node, ep,
                       list(divisors_of(ep)));
  }
  return "";
}

ExchangePlan ExchangeRequest::plan(int etp) const {
  return {.r = r_ == kAllOfEtp ? etp : static_cast<int>(r_),
          .degree_forward = static_cast<int>(more_forward_) + 1,
          .degree_backward = static_cast<int>(more_backward_) + 1,
          .node = static_cast<int>(node_),
          .networks = is_one_network_ == 1U ? 1 : 2,
          .sends_again = sends_again_ == 1U};
}

ExchangeRequest ExchangeRequest::with_degrees(int forward, int backward) const {
  HEDDLE_CHECK(std::min(forward, backward) >= 1 && std::max(forward, backward) <= kMostPieces,
               "degrees {}/{}", forward, backward);
  ExchangeRequest named = *this;
  if (leaves_degrees()) named.mode_ = kNamed;
  named.more_forward_ = static_cast<std::uint32_t>(forward - 1) & 31U;
  named.more_backward_ = static_cast<std::uint32_t>(backward - 1) & 31U;
  return named;
}

std::string ExchangeRequest::text() const {
  constexpr int kAny = 1;
  std::vector<std::string> words = words_of(plan(kAny), r_ != kAllOfEtp);
  if (leaves_degrees()) {
    words.emplace(words.begin() + (r_ != kAllOfEtp ? 1 : 0),
                  fmt::format("degree={}", kPlannedValue));
  } else if (mode_ != kNamed) {
    words.emplace(words.begin(), learns() ? kAdaptive : kTurnsWord);
  }
  if (plans_windows()) words.push_back(fmt::format("windows={}", kPlannedValue));
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<ExchangePlan> turns_of(int etp, int node) {
  constexpr int kDegrees[][2] = {{1, 1}, {2, 3}, {3, 1}, {4, 4}};
  std::vector<ExchangePlan> all = {{.r = 0}};
  for (const auto& [forward, backward] : kDegrees) {
    for (const int r : divisors_of(etp)) {
      for (const int level : node > 1 ? std::vector{1, node} : std::vector{1}) {
        all.push_back({.r = r,
                       .degree_forward = forward,
                       .degree_backward = backward,
                       .node = level,
                       .sends_again = forward != backward});
      }
    }
  }
  return all;
}

std::vector<int> divisors_of(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i) {
    if (n % i == 0) all.push_back(i);
  }
  return all;
}

}  // namespace heddle
