#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "parallel/schedule/routes.h"

namespace heddle {
namespace {

Route all_in_order(int ranks) {
  Route route(static_cast<std::size_t>(ranks));
  std::iota(route.begin(), route.end(), 0);
  return route;
}

/// What a route leaves out lies as far apart as can be, and the next one's is one rank further: so
/// all ranks behind the first are left out equally often.
std::vector<Route> routes_with_gaps(int ranks, double skipped) {
  const int length = route_length(ranks, skipped), others = ranks - 1, gaps = ranks - length;
  if (gaps == 0) return {all_in_order(ranks)};
  if (length < 2) {
    throw Error(ErrorCode::usage,
                fmt::format("skipping {} of {} stages leaves a micro-batch {} of them", skipped,
                            ranks, length),
                "skip less: the first stage is always visited, and one more must be");
  }
  std::vector<Route> routes;
  for (int shift = 0; shift < others; ++shift) {
    Route route = all_in_order(ranks);
    for (int gap = 0; gap < gaps; ++gap) {
      std::erase(route, 1 + (shift + gap * others / gaps) % others);
    }
    routes.push_back(std::move(route));
  }
  return routes;
}

std::vector<Route> routes_with_swaps(int ranks, double skipped) {
  if (skipped > 0.0) {
    throw Error(ErrorCode::usage, "routes that swap stages do not skip any",
                "leave out skip, or give routes that do both");
  }
  if (!has_swapped_pairs(ranks - 1)) {
    throw Error(ErrorCode::usage,
                fmt::format("the {} stages behind the first have no two pairs to swap", ranks - 1),
                "use a pipeline of 3 ranks, or of 5 or more");
  }
  Route swapped = {0};
  for (const int stage : swapped_pairs(ranks - 1)) swapped.push_back(stage + 1);
  return {all_in_order(ranks), std::move(swapped)};
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<Route> parsed(std::string_view text) {
  std::vector<Route> routes;
  for (const std::string_view written : split(text, " ,;\n\t")) {
    Route& route = routes.emplace_back();
    for (const std::string_view number : split(written, "-")) {
      const char* const end = number.data() + number.size();
      int rank = 0;
      const auto [stop, wrong] = std::from_chars(number.data(), end, rank);
      if (wrong != std::errc() || stop != end) {
        throw Error(ErrorCode::usage, fmt::format("\"{}\" is no route", written),
                    "write ranks in the order of the forward, as 0-1-3-4, with spaces between "
                    "routes; or \"swap\"");
      }
      route.push_back(rank);
    }
  }
  return routes;
}

}  // namespace

std::vector<int> swapped_pairs(int stages) {
  std::vector<int> order = all_in_order(stages);
  std::swap(order[0], order[1]);
  if (stages > 2) std::swap(order[order.size() - 2], order[order.size() - 1]);
  return order;
}

void require_routes(const std::vector<Route>& routes, int ranks) {
  RouteRules rules;
  rules.length = static_cast<int>(routes.front().size());
  rules.memory = static_cast<int>(routes.size());
  for (int rank = 0; rank < ranks; ++rank) rules.nodes_by_stage.push_back({rank});
  const auto faults = faults_of(routes, rules);
  if (faults.empty()) return;
  throw Error(
      ErrorCode::usage, fmt::format("{}", fmt::join(faults, "; ")),
      fmt::format("routes begin at rank 0, have the same length, and visit ranks 1 to {} in "
                  "order but for two swaps of neighbours",
                  ranks - 1));
}

std::vector<Route> make_routes(int ranks, double skipped, std::string_view text) {
  if (text == "swap") return routes_with_swaps(ranks, skipped);
  std::vector<Route> routes = parsed(text);
  const bool is_given = !routes.empty();
  if (!is_given) routes = routes_with_gaps(ranks, skipped);
  require_routes(routes, ranks);
  const int length = route_length(ranks, skipped);
  if (is_given && skipped > 0.0 && static_cast<int>(routes.front().size()) != length) {
    throw Error(ErrorCode::usage,
                fmt::format("routes visit {} stages, and skipping {} of {} leaves {}",
                            routes.front().size(), skipped, ranks, length),
                "leave out skip where routes are given");
  }
  return routes;
}

std::string to_text(const std::vector<Route>& routes) {
  std::string text;
  for (const Route& route : routes) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", fmt::join(route, "-"));
  }
  return text;
}

}  // namespace heddle
