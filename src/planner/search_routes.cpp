#include "planner/search_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "parallel/schedule/route_order.h"

namespace heddle::planner {
namespace {

/// Of the time of a plan: the temperature falls from hot (of routes that are good already: warm) to
/// cold while so many moves are tried.
constexpr double kHot = 0.05, kWarm = 0.005, kCold = 0.0005;
constexpr std::uint64_t kMoves = 20000;

/// A visit: which node of which stage.
struct Place {
  int stage = 0, index = 0;
  bool operator==(const Place&) const = default;
};

/// Routes name places, so nodes may change theirs and routes stay valid.
struct RouteState {
  std::vector<std::vector<int>> nodes_by_stage;
  std::vector<std::vector<Place>> routes;
  int copies = 1;  ///< slots of each route
};

void check(const RouteProblem& problem) {
  const int placed = std::accumulate(problem.stage_sizes.begin(), problem.stage_sizes.end(), 0);
  const auto refuse = [](std::string what, std::string hint) {
    throw Error(ErrorCode::usage, std::move(what), std::move(hint));
  };
  if (std::ranges::any_of(problem.stage_sizes, [](int size) { return size < 1; })) {
    refuse("a stage without nodes", "give every stage one or more");
  }
  if (placed != problem.nodes()) {
    refuse(fmt::format("stages of {} nodes for {} nodes", placed, problem.nodes()),
           "give sizes of stages that add up to the nodes");
  }
  if (problem.length < 2 || problem.length > problem.stages()) {
    refuse(fmt::format("routes of {} of {} stages", problem.length, problem.stages()),
           "skip less: the first stage is always visited, and one more must be");
  }
}

class RouteSearch {
 public:
  RouteSearch(const RouteProblem& problem, const RouteSearchOptions& options)
      : problem_(problem), options_(options) {
    check(problem);
    rules_.length = problem.length;
    rules_.memory = problem.most_visits();
  }

  FoundRoutes run() {
    for (int start = 0; start < options_.starts && !is_late(); ++start) run_start(start);
    if (options_.progress) options_.progress(all_moves(), all_moves());
    if (!std::isfinite(found_.plan.seconds)) {
      throw Error(ErrorCode::usage,
                  "in every plan that was tried micro-batches wait for each other for ever",
                  "let nodes have more micro-batches in flight");
    }
    found_.tried = tried_;
    found_.search_seconds = elapsed();
    rules_.nodes_by_stage = found_.plan.nodes_by_stage;
    // The first node of a chain has all micro-batches.
    if (problem_.is_chain()) rules_.memory = problem_.microbatches;
    found_.rules = rules_;
    return std::move(found_);
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  bool is_late() const { return elapsed() > options_.seconds; }
  /// At most: slots that cannot share routes from the first need half of them.
  std::uint64_t all_moves() const {
    return static_cast<std::uint64_t>(options_.starts) * 2 * kMoves;
  }

  std::size_t below(std::size_t limit) {
    return static_cast<std::size_t>(random_uniform(key_, draws_++) * static_cast<double>(limit));
  }

  // ---- The first plan of a start ----------------------------------------------------------------

  RouteState first_state(int start) {
    RouteState state{.nodes_by_stage = problem_.nodes_by_stage, .routes = {}};
    if (state.nodes_by_stage.empty()) {
      int next = 0;
      for (const int size : problem_.stage_sizes) {
        auto& nodes = state.nodes_by_stage.emplace_back();
        for (int i = 0; i < size; ++i, ++next) {
          nodes.push_back(static_cast<int>(random_permutation(
              rng_key(options_.seed, static_cast<std::uint64_t>(start)),
              static_cast<std::uint64_t>(next), static_cast<std::uint64_t>(problem_.nodes()))));
        }
      }
    }
    // All slots of a node of the first stage on one route, where there is room: then nobody else
    // is on its way.
    if (!problem_.is_chain()) {
      state.copies = rules_.memory;
      if (auto routes = first_routes(problem_.stage_sizes[0], state.copies)) {
        state.routes = std::move(*routes);
        return state;
      }
    }
    // Otherwise with fewer slots, where the stages behind the first have no room for all.
    state.copies = 1;
    const int least = problem_.is_chain() ? problem_.slots() : 1;
    for (int slots = problem_.slots(); slots >= least; --slots) {
      if (auto routes = first_routes(slots, 1)) {
        state.routes = std::move(*routes);
        return state;
      }
    }
    throw Error(ErrorCode::usage, "no route keeps the rules",
                "skip less, or give stages more equal numbers of nodes");
  }

  /// Each visits the stages that have most room left, in order; absent: there is not enough.
  std::optional<std::vector<std::vector<Place>>> first_routes(int count, int copies) {
    visits_.clear();
    for (const int size : problem_.stage_sizes) visits_.emplace_back(at(size), 0);
    std::vector<std::vector<Place>> routes;
    for (int slot = 0; slot < count; ++slot) {
      std::vector<int> others(at(problem_.stages() - 1));
      std::iota(others.begin(), others.end(), 1);
      std::ranges::rotate(others, others.begin() + slot % (problem_.stages() - 1));
      std::ranges::stable_sort(others, std::greater<>(), [&](int stage) { return room_of(stage); });
      others.resize(at(problem_.length - 1));
      std::ranges::sort(others);
      auto& route = routes.emplace_back();
      route.push_back({0, slot % problem_.stage_sizes[0]});
      for (const int stage : others) {
        auto& visits = visits_[at(stage)];
        const auto least = std::ranges::min_element(visits);
        if (*least + copies > rules_.memory) return std::nullopt;
        *least += copies;
        route.push_back({stage, static_cast<int>(least - visits.begin())});
      }
      if (!keeps_order(route)) return std::nullopt;
    }
    return routes;
  }
  int room_of(int stage) const {
    const auto& visits = visits_[at(stage)];
    return problem_.stage_sizes[at(stage)] * rules_.memory -
           std::accumulate(visits.begin(), visits.end(), 0);
  }

  bool keeps_order(const std::vector<Place>& route) const {
    std::vector<int> stages;
    for (const Place& place : route) stages.push_back(place.stage);
    return order_fault(stages, rules_).empty();
  }

  // ---- Moves ------------------------------------------------------------------------------------

  /// False: nothing was changed.
  bool move(RouteState& state) {
    const bool places_are_given = !problem_.nodes_by_stage.empty();
    switch (below(places_are_given ? 3 : 4)) {
      case 0: return reorder(state);
      case 1:
      case 2: return exchange(state);
      default: return swap_nodes(state);
    }
  }

  bool reorder(RouteState& state) {
    auto& route = state.routes[below(state.routes.size())];
    if (route.size() < 3) return false;
    const std::size_t first = 1 + below(route.size() - 2);
    std::swap(route[first], route[first + 1]);
    if (keeps_order(route)) return true;
    std::swap(route[first], route[first + 1]);
    return false;
  }

  bool swap_nodes(RouteState& state) {
    const auto draw = [&]() -> int& {
      auto& nodes = state.nodes_by_stage[below(state.nodes_by_stage.size())];
      return nodes[below(nodes.size())];
    };
    int &one = draw(), &other = draw();
    std::swap(one, other);
    return one != other;
  }

  /// A slot goes to another place instead of one on its way, if there is room; otherwise one of
  /// those who go there takes the place that it leaves.
  bool exchange(RouteState& state) {
    auto& route = state.routes[below(state.routes.size())];
    Place& old = route[1 + below(route.size() - 1)];
    const int stage = 1 + static_cast<int>(below(at(problem_.stages() - 1)));
    const Place wanted{stage, static_cast<int>(below(at(problem_.stage_sizes[at(stage)])))};
    const auto visits = [](const std::vector<Place>& on, int of) {
      return std::ranges::any_of(on, [&](const Place& place) { return place.stage == of; });
    };
    if (wanted == old || (wanted.stage != old.stage && visits(route, wanted.stage))) return false;
    const Place left = old;
    int& there = visits_[at(wanted.stage)][at(wanted.index)];
    int& here = visits_[at(left.stage)][at(left.index)];
    if (there + state.copies <= rules_.memory) {
      old = wanted;
      if (!keeps_order(route)) return old = left, false;
      there += state.copies;
      here -= state.copies;
      return true;
    }
    const std::size_t begin = below(state.routes.size());
    for (std::size_t i = 0; i < state.routes.size(); ++i) {
      auto& other = state.routes[(begin + i) % state.routes.size()];
      const auto found = std::ranges::find(other, wanted);
      if (&other == &route || found == other.end()) continue;
      if (left.stage != wanted.stage && visits(other, left.stage)) continue;
      old = wanted;
      *found = left;
      if (keeps_order(route) && keeps_order(other)) return true;
      return old = left, *found = wanted, false;
    }
    return false;
  }

  // ---- Annealing --------------------------------------------------------------------------------

  RoutePlan plan_of(const RouteState& state) const {
    RoutePlan plan{.nodes_by_stage = state.nodes_by_stage, .slots = {}};
    const int all = problem_.microbatches * problem_.stage_sizes[0];
    const int slots = static_cast<int>(state.routes.size()) * state.copies;
    std::vector<int> begun(at(problem_.stage_sizes[0]), 0);  // by node of the first stage
    for (int slot = 0; slot < slots; ++slot) {
      RouteSlot& made = plan.slots.emplace_back();
      const std::vector<Place>& route = state.routes[at(slot / state.copies)];
      for (const auto& [stage, index] : route) {
        made.route.push_back(state.nodes_by_stage[at(stage)][at(index)]);
      }
      int& before = begun[at(route.front().index)];
      made.start = before++ * problem_.times.forward[at(made.route.front())];
      made.microbatches = all / slots + (slot < all % slots ? 1 : 0);
    }
    return plan;
  }

  double judge(const RoutePlan& plan) {
    ++tried_;
    return seconds_of(plan, problem_);
  }

  void keep(RoutePlan plan, double seconds) {
    plan.seconds = seconds;
    found_.plan = std::move(plan);
  }

  /// First with all slots of a node on one route, if that can be, then each by itself.
  void run_start(int start) {
    key_ = rng_key(rng_key(options_.seed, "routes"), static_cast<std::uint64_t>(start));
    draws_ = 0;
    RouteState state = first_state(start);
    const RoutePlan first = plan_of(state);
    const double seconds = judge(first);
    if (start == 0) found_.first_seconds = seconds;
    if (found_.plan.slots.empty() || seconds < found_.plan.seconds) keep(first, seconds);
    anneal(state, kHot);
    if (state.copies == 1 || is_late()) return;
    std::vector<std::vector<Place>> routes;
    for (const auto& route : state.routes) routes.insert(routes.end(), at(state.copies), route);
    state.routes = std::move(routes);
    state.copies = 1;
    anneal(state, kWarm);
  }

  void anneal(RouteState& now, double heat) {
    RoutePlan plan = plan_of(now);
    double seconds = judge(plan);
    const double hot = heat * seconds, cold = kCold * seconds;
    for (std::uint64_t i = 0; i < kMoves; ++i) {
      if (i % 64 == 0) {
        if (is_late()) return;
        if (options_.progress) options_.progress(moves_, all_moves());
      }
      ++moves_;
      const double temperature =
          hot * std::pow(cold / hot, static_cast<double>(i) / static_cast<double>(kMoves));
      RouteState next = now;
      const auto visits = visits_;
      if (!move(next)) continue;
      plan = plan_of(next);
      const double took = judge(plan);
      const bool is_taken = took <= seconds || random_uniform(key_, draws_++) <
                                                   std::exp((seconds - took) / temperature);
      if (!is_taken) {
        visits_ = visits;
        continue;
      }
      now = std::move(next);
      seconds = took;
      if (seconds < found_.plan.seconds) keep(std::move(plan), seconds);
    }
  }

  const RouteProblem& problem_;
  const RouteSearchOptions& options_;
  RouteRules rules_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::uint64_t key_ = 0, draws_ = 0, tried_ = 0, moves_ = 0;
  std::vector<std::vector<int>> visits_;  // of the plan at hand, by stage and index
  FoundRoutes found_;
};

}  // namespace

FoundRoutes search_routes(const RouteProblem& problem, const RouteSearchOptions& options) {
  return RouteSearch(problem, options).run();
}

}  // namespace heddle::planner
