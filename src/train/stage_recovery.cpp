#include "train/stage_recovery.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/schedule/routes.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

using recover::CheckFree;
using recover::StageBlocks;

class StageCheck {
 public:
  StageCheck(const config::RunConfig& config, const ModelSpec& spec)
      : config_(config), spec_(spec), mode_(checkfree_of(config)) {}

  void run() const {
    const ParallelRequest& parallel = config_.parallel;
    refuse_if(parallel.pp < 3, fmt::format("parallel.pp = {}", parallel.pp),
              "no stage has one on both sides", "use a pipeline of 3 or more ranks");
    refuse_if(parallel.tp > 1, fmt::format("parallel.tp = {}", parallel.tp),
              "a lost rank then has a part of a stage", "set parallel.tp = 1");
    refuse_if(parallel.divides_experts(), "parallel.ep or etp above 1",
              "a lost rank then has a part of a stage", "set parallel.ep = 1 and parallel.etp = 1");
    refuse_if(parallel.zero > 0 && parallel.dp * parallel.cp > 1,
              fmt::format("parallel.zero = {}", parallel.zero),
              "a lost rank then has a part of a stage", "set parallel.zero = 0");
    refuse_if(parallel.divides_vocabulary_over_pp(), "parallel.vocabulary = \"pipeline\"",
              "every stage then has rows of embedding and head, which no other has",
              "use \"tensor\" or \"replicated\"");
    if (mode_ == CheckFree::plus) check_swaps();
    check_blocks();
  }

 private:
  void check_swaps() const {
    const ParallelRequest& parallel = config_.parallel;
    const bool swaps = parallel.takes_routes() && parallel.routes == "swap";
    refuse_if(!swaps, "micro-batches that all visit stages in one order",
              "the first and the last stage are copied from those that learn their place",
              "set parallel.schedule = \"routes\" and parallel.routes = \"swap\"");
  }

  /// Stages correspond by position.
  void check_blocks() const {
    config::RunConfig one = config_;
    one.parallel.dp = 1;
    const auto ranks = static_cast<int>(one.parallel.ranks());
    const StageBlocks blocks = stage_blocks(configured_plan(one, spec_, ranks), spec_);
    refuse_if(blocks.begins.empty(), "several stages on a rank",
              "neighbours would be lost together",
              "set parallel.chunks = 1 and a schedule with one stage on a rank");
    std::vector<int> counts;
    for (int stage = 0; stage < blocks.stages(); ++stage) counts.push_back(blocks.count(stage));
    refuse_if(!blocks.are_even(), fmt::format("stages of {} blocks", fmt::join(counts, ", ")),
              "they have to correspond block by block",
              "use a parallel.pp whose stages have the same number; with parallel.schedule = "
              "\"routes\" one that has a multiple of pp - 1 blocks");
    refuse_if(mode_ == CheckFree::plus && blocks.first() != 1,
              fmt::format("{} blocks over {} stages", spec_.layers, blocks.stages()),
              "the first rank is to have embedding and head alone, which are kept twice",
              fmt::format("use a multiple of {} blocks", blocks.stages() - 1));
  }

  void refuse_if(bool is_so, const std::string& what, const std::string& why,
                 const std::string& hint) const {
    if (!is_so) return;
    throw Error(ErrorCode::usage,
                fmt::format("recover.stages = \"{}\" does not go with {}: {}", name(), what, why),
                hint);
  }

  const char* name() const {
    if (skips_stages(config_)) return "skip";
    return mode_ == CheckFree::plus ? "checkfree+" : "checkfree";
  }

  const config::RunConfig& config_;
  const ModelSpec& spec_;
  const CheckFree mode_;
};

}  // namespace

CheckFree checkfree_of(const config::RunConfig& config) {
  if (!config.recover.elastic) return CheckFree::off;
  switch (config.recover.stages) {
    case config::LostStages::checkfree:
    case config::LostStages::skip: return CheckFree::inner;
    case config::LostStages::checkfree_plus: return CheckFree::plus;
    default: return CheckFree::off;
  }
}

bool skips_stages(const config::RunConfig& config) {
  return config.recover.elastic && config.recover.stages == config::LostStages::skip;
}

void check_stage_recovery(const config::RunConfig& config, const ModelSpec& spec) {
  if (checkfree_of(config) != CheckFree::off) StageCheck(config, spec).run();
}

StageBlocks stage_blocks(const ParallelPlan& plan, const ModelSpec& spec) {
  const int layers = static_cast<int>(spec.layers);
  StageBlocks blocks;
  for (int rank = 0, next = 0; rank < plan.pp; ++rank) {
    blocks.begins.push_back(next);
    for (const int stage : plan.stages_of(rank)) {
      const auto& units = plan.units_of_stage[static_cast<std::size_t>(stage)];
      // Unit 0 is the embedding; final norm and head are behind the blocks.
      const int begin = std::clamp(units.begin - 1, 0, layers);
      const int end = std::clamp(units.end - 1, 0, layers);
      if (begin == end) continue;
      if (begin != next) return {};
      next = end;
    }
  }
  blocks.begins.push_back(layers);
  return blocks;
}

std::vector<StepArgs::OfUnit> unit_rates(const Model& model, const RunState& state) {
  std::vector<StepArgs::OfUnit> rates;
  if (state.made_anew.empty() && state.left_out.empty()) return rates;
  const std::vector<int> left_out = recover::numbers_of(state.left_out);
  for (const RankUnits::Unit& unit : model.units().units) {
    StepArgs::OfUnit& rate = rates.emplace_back();
    const auto found = state.made_anew.find(unit.block);
    if (std::ranges::binary_search(left_out, unit.block)) {
      rate.rests = true;
    } else if (found != state.made_anew.end()) {
      rate = {.lr_factor = recover::kRaisedRate, .steps_before = found->second};
    }
  }
  return rates;
}

}  // namespace heddle
