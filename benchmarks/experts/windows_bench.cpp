// Backward through layers of experts on nodes with a slow network between them, with the sums of
// the dense parts' gradients: begun as soon as they exist, all behind the last layer, or cut and
// begun where the network is idle, as parallel.ep_exchange = "degree=planned windows=planned" plans
// it (FSMoE's gradient partitioning).
//
//     benchmarks/experts/shaped_nodes.sh 2 2 60 90 build/benchmarks/windows_bench [ROUNDS]
//
// As in degrees_bench, products are waits and exchanges real, over measured links. A step is what
// tell_step says: the executor's ops, performed by a stage whose units are a pass over experts
// (PassWalk) and a wait for the dense part; sums are all-reduces over the ranks of one place in
// both nodes, which have the same link as rows. Measured is from the first backward pass to the end
// of the last sum, in turns; the recurrence says what the planned way takes.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <thread>

#include "bench/timed_pass.h"
#include "engine/executor.h"
#include "joined_rank.h"
#include "measured_nodes.h"
#include "parallel/offered_sums.h"
#include "parallel/schedule/make_schedule.h"
#include "planner/planned_windows.h"
#include "planner/step_units.h"

namespace heddle {
namespace {

constexpr int kBlocks = 6;

/// Tokens of the ranks of a node, width, width of experts, experts of a token.
struct Shape {
  int tokens = 0, hidden = 0, width = 0, chosen = 0;

  /// That a rank sends, and receives.
  std::int64_t rows() const { return std::int64_t{tokens} / kPerNode * chosen; }
};

/// A model of such blocks on two nodes of two ranks, and how it is planned.
class PlannedModel {
 public:
  PlannedModel(const Shape& shape, const planner::Machine& machine)
      : spec_(model_spec(Json{{"model_type", "mixtral"},
                              {"vocab_size", 64},
                              {"hidden_size", shape.hidden},
                              {"num_hidden_layers", kBlocks},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 4},
                              {"intermediate_size", shape.width},
                              {"num_local_experts", 2},
                              {"num_experts_per_tok", shape.chosen},
                              {"rope_theta", 10000.0}},
                         "layers")),
        request_{.dp = 2,
                 .tp = kPerNode,
                 .ep = 2,
                 .etp = kPerNode,
                 .ep_exchange = "degree=planned windows=planned",
                 .zero = 0,
                 .sequence = true},
        batches_{.sequences = 1, .seq_len = shape.tokens} {
    const ParallelPlan plan = make_plan(spec_, request_, 4, shape.tokens);
    planner::PlannedExchange made =
        planner::planned_exchange(machine, spec_, plan, batches_, DType::f32);
    request_.ep_exchange = made.exchange;
    windows_ = std::move(made.windows);
    ParallelPlan alone = plan;
    alone.ep_exchange = "degree=planned";
    without_windows_ =
        planner::planned_exchange(machine, spec_, alone, batches_, DType::f32).exchange;
    const planner::Job job{.spec = spec_,
                           .seq_len = shape.tokens,
                           .batch = 2,
                           .stack = planner::Stack::heddle(DType::f32)};
    const planner::Candidate candidate{request_, planner::Recompute::none, 1};
    predicted_ = planner::plan_windows(machine, job, candidate, plan.rank_of_stage).seconds;
    const planner::BlockCost block = planner::block_cost(machine, job, candidate);
    rank_ = planner::step_units(machine, job, candidate, block, plan.rank_of_stage).ranks[0];
  }

  ExchangePlan exchange() const { return request_.ep_exchange.plan(kPerNode); }
  /// As degrees are planned where sums have no windows.
  ExchangePlan exchange_without() const { return without_windows_.plan(kPerNode); }
  const SumWindows& windows() const { return windows_; }
  double predicted() const { return predicted_; }
  /// Of a block, without its experts.
  double dense_seconds() const {
    const planner::UnitTimes& times = block_times();
    return times.b.seconds + times.w.seconds - times.in_bw.seconds;
  }
  const planner::UnitTimes& block_times() const {
    for (std::size_t unit = 0; unit < rank_.times.size(); ++unit) {
      if (rank_.units.units[unit].block == 0) return rank_.times[unit];
    }
    throw std::runtime_error("a model without blocks");
  }
  /// Elements of a block that ranks of dp sum.
  std::int64_t gradients() const {
    for (const RankUnits::Bucket& bucket : rank_.units.buckets) {
      if (rank_.units.units[static_cast<std::size_t>(bucket.owner)].block == 0) {
        return bucket.elements;
      }
    }
    throw std::runtime_error("a block without gradients");
  }

 private:
  const ModelSpec spec_;
  ParallelRequest request_;
  const planner::RunBatches batches_;
  SumWindows windows_;
  ExchangeRequest without_windows_;
  double predicted_ = 0;
  planner::StepRank rank_;
};

enum class Way { at_once, at_end, windows };
constexpr Way kWays[] = {Way::at_once, Way::at_end, Way::windows};

/// Blocks whose forward is nothing.
class TimedBlocks : public Stage {
 public:
  TimedBlocks(const Shape& shape, const PlannedModel& model, const ExchangePlan& exchange,
              const ExpertNodes& nodes, Communicator& dp)
      : model_(model),
        dp_(dp),
        degree_(exchange.degree_backward),
        products_(static_cast<double>(shape.rows() * kPerNode) *
                  products(shape.hidden, shape.width)),
        pass_(nodes, shape.rows(), shape.hidden, exchange, 2) {
    for (int block = 0; block < kBlocks; ++block) {
      gradients_.push_back(
          memory_.zeros({model.gradients()}, DType::f32, MemoryTag::communication));
    }
  }

  Tensor compute(const StepOp& op, const Tensor&) override {
    if (op.action->act == Act::f) return {};
    if (!began_) began_.emplace();
    pass_.walk({.expert = products_ / degree_ + 2 * kProductSeconds,
                .weights = products_ + 2 * kProductSeconds},
               &offered_);
    offered_.begin_behind_experts(stream_);
    std::this_thread::sleep_for(std::chrono::duration<double>(model_.dense_seconds()));
    offered_.end_pass(stream_);
    return {};
  }
  Tensor boundary(int) override { return {}; }
  void perform(const StepOp& op) override {
    const auto sum = [&]() -> OfferedSums::Sum {
      const Tensor& whole = gradients_[static_cast<std::size_t>(op.what)];
      const Tensor slice = op.slice.is_all() ? whole : whole.slice(0, op.slice.begin, op.slice.end);
      return {&dp_, [this, slice](Stream& after) {
                sums_.push_back(dp_.all_reduce(slice, ReduceOp::sum, after));
                return sums_.back();
              }};
    };
    switch (op.kind) {
      case StepOp::Kind::reduce: static_cast<void>(sum().begin(stream_)); return;
      case StepOp::Kind::beside_experts: return offered_.offer_beside_experts(sum());
      case StepOp::Kind::beside_rest: return offered_.offer_beside_rest(sum());
      case StepOp::Kind::reduced: sums_.front().wait(stream_); return sums_.pop_front();
      default: return;
    }
  }
  double seconds() const { return began_->seconds(); }

 private:
  const PlannedModel& model_;
  Communicator& dp_;
  const int degree_;
  const double products_;  // seconds of all rows that come to a node
  const TimedExpertsPass pass_;
  Memory memory_;
  Stream stream_{1};
  OfferedSums offered_;
  std::deque<Work> sums_;
  std::vector<Tensor> gradients_;
  std::optional<Stopwatch> began_;
};

double measured_seconds(World& world, const Shape& shape, const PlannedModel& model,
                        const ExpertNodes& nodes, Communicator& dp, Communicator& alone, Way way) {
  RankUnits units;
  units.stages = {{0, kBlocks}};
  for (int block = 0; block < kBlocks; ++block) {
    units.units.push_back({.buckets = {block}, .block = block});
    units.buckets.push_back({.owner = block,
                             .over = {Axis::dp},
                             .elements = model.gradients(),
                             .held = model.gradients()});
  }
  StepPolicy policy;
  policy.updates = false;
  policy.sums.clear();
  policy.reduces_at_end = way == Way::at_end;
  if (way == Way::windows) policy.windows = model.windows();
  TimedBlocks blocks(shape, model,
                     way == Way::windows ? model.exchange() : model.exchange_without(), nodes, dp);
  Stream stream(1);
  world.all().barrier();
  execute(lower(make_schedule(Pipeline::one_f_one_b, {1, 1})), units, policy, alone, blocks,
          stream);
  return world.all().combine(blocks.seconds(), ReduceOp::max);
}

std::vector<Shape> make_shapes() {
  std::vector<Shape> all;
  for (const int hidden : {128, 192, 256}) {
    for (const int tokens : {256, 512}) {
      for (const int times : {2, 4}) all.push_back({tokens, hidden, times * hidden, 1});
    }
  }
  return all;
}

void run(World& world, int rounds) {
  if (world.size() != 2 * kPerNode) throw std::runtime_error("two nodes of two ranks are needed");
  const ExpertNodes nodes(world, kPerNode);
  const auto dp = world.all().split(world.rank() % kPerNode, world.rank(), "dp");
  const auto alone = world.all().split(world.rank(), 0, "pp");
  const MeasuredNodes measured(world, nodes);
  nodes.run_in_background();
  dp->run_in_background(true);
  struct Case {
    Shape shape;
    PlannedModel model;
    std::array<std::vector<double>, std::size(kWays)> runs = {};
    double median(Way way) const { return quantile(runs[static_cast<std::size_t>(way)], 0.5); }
  };
  std::vector<Case> cases;
  for (const Shape& shape : make_shapes()) {
    cases.push_back({shape, PlannedModel(shape, measured.machine)});
  }
  for (int round = 0; round < rounds; ++round) {
    for (Case& one : cases) {
      for (const Way way : kWays) {
        one.runs[static_cast<std::size_t>(way)].push_back(
            measured_seconds(world, one.shape, one.model, nodes, *dp, *alone, way));
      }
    }
  }
  if (world.rank() != 0) return;
  measured.print();
  fmt::print("Rounds: {}, {} blocks\n\n", rounds, kBlocks);
  fmt::print(
      "| tokens | width | experts | degrees back, with and without windows | gradients of a block "
      "| beside experts | beside the "
      "rest | windows ms | predicted | at once | at the end | at once over windows | at the end "
      "over windows |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<double> over_once, over_end, off;
  for (const Case& one : cases) {
    double with_experts = 0, with_rest = 0;
    for (const SumWindow& window : one.model.windows()) {
      with_experts += static_cast<double>(window.with_experts);
      with_rest += static_cast<double>(window.with_rest);
    }
    const double all = static_cast<double>(one.model.gradients()) * kBlocks;
    const double windows = one.median(Way::windows);
    over_once.push_back(one.median(Way::at_once) / windows);
    over_end.push_back(one.median(Way::at_end) / windows);
    off.push_back(windows / one.model.predicted());
    const ExchangePlan plan = one.model.exchange(), without = one.model.exchange_without();
    fmt::print(
        "| {} | {} | {} | {}, {} | {:.0f}K | {:.0f} % | {:.0f} % | {:.1f} | {:.1f} | {:.1f} | "
        "{:.1f} | {:.3f} | {:.3f} |\n",
        one.shape.tokens, one.shape.hidden, one.shape.width, plan.degree_backward,
        without.degree_backward, 1e-3 * static_cast<double>(one.model.gradients()),
        100 * with_experts / all, 100 * with_rest / all, 1e3 * windows, 1e3 * one.model.predicted(),
        1e3 * one.median(Way::at_once), 1e3 * one.median(Way::at_end), over_once.back(),
        over_end.back());
  }
  fmt::print(
      "\nMedians of {} shapes: at once over windows {:.3f}, at the end over windows {:.3f}, "
      "windows measured over predicted {:.3f} ({:.3f} to {:.3f})\n",
      cases.size(), quantile(over_once, 0.5), quantile(over_end, 0.5), quantile(off, 0.5),
      quantile(off, 0.0), quantile(off, 1.0));
}

}  // namespace
}  // namespace heddle

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 3;
  heddle::run_joined_rank([&](heddle::World& world) { heddle::run(world, rounds); });
}
