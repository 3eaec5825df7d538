#include "nn/experts/exchange_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/strings.h"

namespace heddle {
namespace {

constexpr const char* kAdaptive = "adaptive";
constexpr int kMostPieces = 32;

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

/// Reads one plan; what is wrong goes to `problem`.
class PlanReader {
 public:
  PlanReader(int ep, int etp, std::string& problem) : ep_(ep), etp_(etp), problem_(problem) {
    plan_.r = etp;
  }

  void read(std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals),
                           value = equals == word.npos ? "" : word.substr(equals + 1);
    if (key == "r") return read_r(value);
    if (key == "degree") return read_degree(value);
    if (key == "2dh") return read_node(value);
    if (key == "networks") return read_networks(value);
    refuse("\"{}\" is none of r=N, degree=N, degree=N/M, 2dh=N, networks=N and adaptive", word);
  }

  const ExchangePlan& plan() const { return plan_; }

 private:
  template <class... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    if (problem_.empty()) problem_ = fmt::format(format, std::forward<Args>(args)...);
  }
  void read_r(std::string_view value) {
    const auto r = number_in(value);
    if (!r || (*r > 0 && etp_ % *r != 0)) {
      return refuse("r={} is neither 0 nor a divisor of parallel.etp = {}; use 0, {}", value, etp_,
                    list(divisors_of(etp_)));
    }
    plan_.r = *r;
  }
  void read_degree(std::string_view value) {
    const std::size_t slash = value.find('/');
    const auto forward = number_in(value.substr(0, slash)),
               backward = slash == value.npos ? forward : number_in(value.substr(slash + 1));
    for (const auto& degree : {forward, backward}) {
      if (!degree || *degree < 1 || *degree > kMostPieces) {
        return refuse("degree={}; use 1 to {} pieces, or degree=N/M for forward and backward",
                      value, kMostPieces);
      }
    }
    plan_.degree_forward = *forward;
    plan_.degree_backward = *backward;
  }
  void read_node(std::string_view value) {
    const auto node = number_in(value);
    if (!node || *node < 1 || ep_ % *node != 0) {
      return refuse("2dh={} does not divide parallel.ep = {}; use {}", value, ep_,
                    list(divisors_of(ep_)));
    }
    plan_.node = *node;
  }
  void read_networks(std::string_view value) {
    const auto networks = number_in(value);
    if (networks != 1 && networks != 2) {
      return refuse("networks={}; use 2 where ep and etp exchange at the same time, 1 in turn",
                    value);
    }
    plan_.networks = *networks;
  }

  const int ep_, etp_;
  std::string& problem_;
  ExchangePlan plan_;
};

ExchangeRequest read_request(const std::string& text, int ep, int etp, std::string& problem) {
  ExchangeRequest request;
  for (const std::string_view turn : split(text, ',')) {
    PlanReader reader(ep, etp, problem);
    for (const std::string_view word : split(turn, ' ')) {
      if (word == kAdaptive) {
        request.learns = true;
      } else if (!word.empty()) {
        reader.read(word);
      }
    }
    request.turns.push_back(reader.plan());
  }
  if (request.learns && request.turns.size() > 1 && problem.empty()) {
    problem = "adaptive chooses by itself; leave out the commas";
  }
  return request;
}

}  // namespace

std::string ExchangePlan::text() const {
  std::string text = fmt::format("r={}", r);
  if (degree_forward != degree_backward) {
    text += fmt::format(" degree={}/{}", degree_forward, degree_backward);
  } else if (degree_forward > 1) {
    text += fmt::format(" degree={}", degree_forward);
  }
  if (node > 1) text += fmt::format(" 2dh={}", node);
  if (networks == 1) text += " networks=1";
  return text;
}

std::string ExchangeRequest::problem_in(const std::string& text, int ep, int etp) {
  std::string problem;
  read_request(text, ep, etp, problem);
  return problem;
}

ExchangeRequest ExchangeRequest::parse(const std::string& text, int etp) {
  std::string problem;
  // Nodes are not looked at: of any number of ranks they are a divisor of 0.
  ExchangeRequest request = read_request(text, 0, etp, problem);
  HEDDLE_CHECK(problem.empty(), "parallel.ep_exchange = \"{}\": {}", text, problem);
  return request;
}

std::vector<int> divisors_of(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i) {
    if (n % i == 0) all.push_back(i);
  }
  return all;
}

}  // namespace heddle
