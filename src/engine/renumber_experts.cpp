#include "engine/renumber_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace heddle {
namespace {

class Renumbering {
 public:
  Renumbering(const ModelSpec& spec, const StoredTensors& weights)
      : experts_(*spec.experts), weights_(weights) {}

  void add(std::int64_t layer, const std::vector<int>& order) {
    const auto named = [&](const std::string& pattern, auto... more) {
      return fmt::format(fmt::runtime(pattern), layer, more...);
    };
    const std::size_t before = origins_.size();
    // Not all of a router: the projection and the temperature of cosines are of all experts.
    add_rows(named(experts_.router) + ".weight", order);
    add_rows(named(experts_.bias), order);
    add_rows(named(experts_.stacked_router), order);
    require_more(before, named(experts_.router) + ".weight");
    for (const auto& [pattern, stacked] : {std::pair{experts_.gate, experts_.stacked_up},
                                           std::pair{experts_.up, experts_.stacked_up},
                                           std::pair{experts_.down, experts_.stacked_down}}) {
      const std::size_t so_far = origins_.size();
      if (weights_.contains(named(stacked))) {
        add_rows(named(stacked), order);
        continue;
      }
      for (std::size_t expert = 0; expert < order.size(); ++expert) {
        add_renamed(named(pattern, order[expert]) + ".", named(pattern, expert) + ".");
      }
      require_more(so_far, named(pattern, 0) + ".weight");
    }
  }
  std::map<std::string, TensorOrigin> take() { return std::move(origins_); }

 private:
  /// The tensor, where there is one of this name, has a row, or a matrix, for each expert.
  void add_rows(const std::string& name, const std::vector<int>& order) {
    if (!weights_.contains(name)) return;
    const auto sizes = weights_.spec(name).sizes;
    if (sizes.empty() || sizes[0] != experts_.count) {
      throw Error(ErrorCode::data, fmt::format("tensor \"{}\" does not have {} rows, one for "
                                               "each expert",
                                               name, experts_.count));
    }
    origins_[name] = {.name = name, .rows = order};
  }
  void add_renamed(const std::string& from, const std::string& to) {
    for (const std::string& name : weights_.names()) {
      if (!name.starts_with(from)) continue;
      const std::string renamed = to + name.substr(from.size());
      if (!weights_.contains(renamed) ||
          weights_.spec(renamed).dtype_name != weights_.spec(name).dtype_name ||
          weights_.spec(renamed).sizes != weights_.spec(name).sizes) {
        throw Error(
            ErrorCode::data,
            fmt::format("there is no tensor \"{}\" like \"{}\": experts differ", renamed, name));
      }
      origins_[renamed] = {.name = name};
    }
  }
  void require_more(std::size_t before, const std::string& name) const {
    if (origins_.size() > before) return;
    throw Error(ErrorCode::data, fmt::format("tensor \"{}\" is missing", name));
  }

  const ExpertsSpec& experts_;
  const StoredTensors& weights_;
  std::map<std::string, TensorOrigin> origins_;
};

}  // namespace

std::map<std::string, TensorOrigin> renumbered_experts(const ModelSpec& spec,
                                                       const StoredTensors& weights,
                                                       const std::vector<std::vector<int>>& order) {
  if (!spec.experts) {
    throw Error(ErrorCode::usage, "the model has no experts to place", "leave --placement out");
  }
  if (spec.experts->rule.groups > 1) {
    throw Error(ErrorCode::usage,
                fmt::format("the router chooses among {} groups of neighbouring experts, which "
                            "other numbers would take apart",
                            spec.experts->rule.groups),
                "leave --placement out");
  }
  const auto placed = order.empty() ? 0 : order.front().size();
  if (static_cast<std::int64_t>(order.size()) != spec.expert_layers() ||
      static_cast<std::int64_t>(placed) != spec.experts->count) {
    throw Error(ErrorCode::usage,
                fmt::format("the placement is of {} layers with {} experts, the model has {} with "
                            "{}",
                            order.size(), placed, spec.expert_layers(), spec.experts->count),
                "use a placement that was made from a trace of this model");
  }
  Renumbering renumbering(spec, weights);
  std::size_t next = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto& branches = spec.block(layer).branches;
    if (std::ranges::find(branches, "experts") == branches.end()) continue;
    renumbering.add(layer, order[next++]);
  }
  return renumbering.take();
}

}  // namespace heddle
