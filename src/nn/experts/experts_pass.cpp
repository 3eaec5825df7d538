#include "nn/experts/experts_pass.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace heddle {
namespace {

using Kind = ExpertsTask::Kind;

class TaskList {
 public:
  explicit TaskList(const ExpertsPassShape& shape) : shape_(shape) {}

  ExpertsPass build() {
    const std::size_t chunks = static_cast<std::size_t>(shape_.degree);
    std::vector<int> gathers(chunks);
    if (shape_.has_one_network) {
      for (std::size_t i = 0; i < chunks; ++i) gathers[i] = add_gather(i, add_dispatch(i));
      add_gradients();
    } else {
      std::vector<int> dispatches(chunks);
      for (std::size_t i = 0; i < chunks; ++i) dispatches[i] = add_dispatch(i);
      add_gradients();
      for (std::size_t i = 0; i < chunks; ++i) gathers[i] = add_gather(i, dispatches[i]);
    }
    int expert = -1;
    for (std::size_t i = 0; i < chunks; ++i) {
      expert = add_expert(i, gathers[i]);
      if (shape_.comes_back) add_combine(i, add_scatter(i, expert));
    }
    if (shape_.makes_weights) add(Kind::weights, 0, ExpertsLane::compute, expert);
    return std::move(pass_);
  }

 private:
  int add(Kind kind, std::size_t chunk, ExpertsLane lane, int after = -1) {
    pass_.push_back({kind, static_cast<int>(chunk), lane, after});
    return static_cast<int>(pass_.size()) - 1;
  }
  ExpertsLane within() const {
    return shape_.has_one_network ? ExpertsLane::between_nodes : ExpertsLane::within_node;
  }
  int add_dispatch(std::size_t i) { return add(Kind::dispatch, i, ExpertsLane::between_nodes); }
  int add_gather(std::size_t i, int after) { return add(Kind::gather, i, within(), after); }
  int add_expert(std::size_t i, int after) {
    return add(Kind::expert, i, ExpertsLane::compute, after);
  }
  int add_scatter(std::size_t i, int after) { return add(Kind::scatter, i, within(), after); }
  void add_combine(std::size_t i, int after) {
    add(Kind::combine, i, ExpertsLane::between_nodes, after);
  }
  void add_gradients() {
    if (shape_.sends_gradients) add(Kind::gradients, 0, ExpertsLane::between_nodes);
  }

  ExpertsPassShape shape_;
  ExpertsPass pass_;
};

}  // namespace

ExpertsPass make_experts_pass(const ExpertsPassShape& shape) {
  HEDDLE_CHECK(shape.degree >= 1, "degree {}", shape.degree);
  return TaskList(shape).build();
}

double ExpertsSeconds::of(Kind kind) const {
  switch (kind) {
    case Kind::dispatch: return exchange + inputs;
    case Kind::combine: return exchange;
    case Kind::gather: return gather;
    case Kind::expert: return expert;
    case Kind::scatter: return scatter;
    case Kind::gradients: return gradients;
    case Kind::weights: return weights;
  }
  return 0.0;
}

std::vector<double> end_times(const ExpertsPass& pass, const ExpertsSeconds& seconds) {
  std::array<double, kExpertsLanes> lane_free{};
  std::vector<double> ends;
  ends.reserve(pass.size());
  for (const ExpertsTask& task : pass) {
    double& free = lane_free[static_cast<std::size_t>(task.lane)];
    const double ready = task.after < 0 ? 0.0 : ends[static_cast<std::size_t>(task.after)];
    free = std::max(free, ready) + seconds.of(task.kind);
    ends.push_back(free);
  }
  return ends;
}

double makespan(const ExpertsPass& pass, const ExpertsSeconds& seconds) {
  return std::ranges::max(end_times(pass, seconds));
}

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"dispatch", "gather",    "expert", "scatter",
                                                      "combine",  "gradients", "weights"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(ExpertsLane lane) {
  constexpr std::array<std::string_view, kExpertsLanes> kNames = {"between nodes", "within a node",
                                                                  "computing"};
  return kNames[static_cast<std::size_t>(lane)];
}

}  // namespace heddle
