// A layer of experts on nodes with a slow network between them and a faster one within: degrees
// that are planned from measured lines, with both networks at once, against one degree for both
// passes with one network (Tutel's pipeline).
//
//     benchmarks/experts/shaped_nodes.sh 2 2 60 90 build/benchmarks/degrees_bench [ROUNDS]
//
// Every rank has an accelerator that it does not have: products are waits, of the time that
// kFlops gives them. Exchanges are real, over the links that the script makes; so are the walk, the
// communicators and the copies of rows. First both networks are measured, and lines fitted; from
// these the planner makes its machine, as `parallel.ep_exchange = "degree=planned"` does with a
// machine file, and chooses the degrees of every layer. Then all ways of all layers are measured in
// turns.

#include <fmt/format.h>

#include <cstdlib>

#include "joined_rank.h"
#include "measured_nodes.h"
#include "planner/experts_cost.h"

namespace heddle {
namespace {

constexpr int kLayers = 20;

/// As the paper spreads them (tokens, width, width of experts), smaller; and 1 or 2 experts a
/// token.
struct Layer {
  int tokens = 0, hidden = 0, width = 0, chosen = 0;

  std::int64_t rows() const { return std::int64_t{tokens} * chosen; }
};

std::vector<Layer> make_layers() {
  std::vector<Layer> all;
  for (const int tokens : {128, 256, 512}) {
    for (const int hidden : {128, 256, 512}) {
      for (const int times : {2, 3, 4}) {
        for (const int chosen : {1, 2}) all.push_back({tokens, hidden, times * hidden, chosen});
      }
    }
  }
  std::vector<Layer> some;
  for (std::size_t i = 0; i < kLayers; ++i) some.push_back(all[i * all.size() / kLayers]);
  return some;
}

// ---- Layers -------------------------------------------------------------------------------------

/// Seconds of the products of so many of the rows that a rank of etp has.
double products(const Layer& layer, double rows) {
  return rows * heddle::products(layer.hidden, layer.width) + 2.0 * kProductSeconds;
}

/// How the planner sees the layer.
struct Planned {
  ModelSpec spec;
  planner::RunBatches batches;
  ParallelPlan plan;

  explicit Planned(const Layer& layer)
      : spec(model_spec(Json{{"model_type", "mixtral"},
                             {"vocab_size", 64},
                             {"hidden_size", layer.hidden},
                             {"num_hidden_layers", 1},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 4},
                             {"intermediate_size", layer.width},
                             {"num_local_experts", 2},
                             {"num_experts_per_tok", layer.chosen},
                             {"rope_theta", 10000.0}},
                        "a layer")),
        batches{.sequences = 1, .seq_len = layer.tokens},
        plan(make_plan(spec, {.dp = 4, .ep = 2, .etp = kPerNode, .ep_exchange = "degree=planned"},
                       4, layer.tokens)) {}

  ExchangePlan degrees(const planner::Machine& machine) const {
    return planner::planned_exchange(machine, spec, plan, batches, DType::f32)
        .exchange.plan(kPerNode);
  }
  /// Both passes over the experts with their products, by the recurrence.
  double seconds(const planner::Machine& machine, const Layer& layer,
                 const ExchangePlan& exchange) const {
    planner::Candidate candidate{plan.request()};
    candidate.ep_exchange = ExchangeRequest(exchange, kPerNode);
    const planner::Job job{.spec = spec,
                           .seq_len = layer.tokens,
                           .batch = 4,
                           .stack = planner::Stack::heddle(DType::f32)};
    const planner::ExpertsCost cost =
        planner::experts_cost(machine, job, candidate, planner::dry_blocks(job, candidate));
    // Numbers of rows are known before the passes begin.
    const auto counts = [&](int ranks, int stride, double bytes) {
      return planner::collective_seconds(machine, CommOp::all_gather,
                                         planner::group_shape(machine, ranks, stride), bytes);
    };
    const double known = counts(2, kPerNode, 2 * 3 * 4) + counts(kPerNode, 1, 4 * 3 * 4);
    const double rows = static_cast<double>(layer.rows()) * kPerNode;
    return cost.exposed_f + cost.exposed_b - known + 3.0 * products(layer, rows);
  }
};

double measured_seconds(World& world, const ExpertNodes& nodes, const Layer& layer,
                        const ExchangePlan& plan) {
  const double rows = static_cast<double>(layer.rows()) * kPerNode;
  double own = TimedExpertsPass(nodes, layer.rows(), layer.hidden, plan, 1)
                   .run({.expert = products(layer, rows / plan.degree_forward)});
  own += TimedExpertsPass(nodes, layer.rows(), layer.hidden, plan, 2)
             .run({.expert = products(layer, rows / plan.degree_backward),
                   .weights = products(layer, rows)});
  return world.all().combine(own, ReduceOp::max);
}

// ---- The table ----------------------------------------------------------------------------------

struct Way {
  std::string name;
  ExchangePlan plan = {};
  double predicted = 0;
  std::vector<double> runs = {};

  double median() const { return quantile(runs, 0.5); }
};

struct Case {
  Layer layer;
  std::vector<Way> ways;  ///< planned; the same with one network; one degree and one network

  double gain_over(std::size_t way) const { return ways[way].median() / ways[0].median(); }
  double predicted_gain_over(std::size_t way) const {
    return ways[way].predicted / ways[0].predicted;
  }
};

constexpr int kFixed[] = {1, 2, 4, 8};
constexpr std::size_t kOneNetwork = 1, kFirstFixed = 2;

/// Of those of one degree the best.
std::size_t best_fixed(const Case& one, bool by_prediction) {
  std::size_t best = kFirstFixed;
  for (std::size_t way = kFirstFixed; way < one.ways.size(); ++way) {
    const auto seconds = [&](std::size_t of) {
      return by_prediction ? one.ways[of].predicted : one.ways[of].median();
    };
    if (seconds(way) < seconds(best)) best = way;
  }
  return best;
}

std::vector<Case> make_cases(const planner::Machine& machine) {
  std::vector<Case> cases;
  for (const Layer& layer : make_layers()) {
    const Planned planned(layer);
    Case& one = cases.emplace_back(Case{layer, {}});
    const auto add = [&](const std::string& name, const ExchangePlan& plan) {
      one.ways.push_back({name, plan, planned.seconds(machine, layer, plan)});
    };
    const ExchangePlan chosen = planned.degrees(machine);
    add("planned", chosen);
    ExchangePlan in_turn = chosen;
    in_turn.networks = 1;
    add("planned, one network", in_turn);
    for (const int degree : kFixed) {
      add(fmt::format("degree {}", degree),
          {.r = kPerNode, .degree_forward = degree, .degree_backward = degree, .networks = 1});
    }
  }
  return cases;
}

void print_table(const std::vector<Case>& cases) {
  fmt::print("| tokens | width | experts | chosen | degrees | ms | predicted |");
  for (const int degree : kFixed) fmt::print(" degree {} |", degree);
  fmt::print(" over the best | predicted |\n|{}\n",
             "---|---|---|---|---|---|---|---|---|---|---|---|---|");
  std::vector<std::vector<double>> gains(std::size(kFixed) + 1), off(1);
  std::vector<double> over_best, over_best_predicted, lanes;
  for (const Case& one : cases) {
    const Way& planned = one.ways[0];
    const std::size_t best = best_fixed(one, false);
    fmt::print("| {} | {} | {} | {} | {}/{} | {:.1f} | {:.1f} |", one.layer.tokens,
               one.layer.hidden, one.layer.width, one.layer.chosen, planned.plan.degree_forward,
               planned.plan.degree_backward, 1e3 * planned.median(), 1e3 * planned.predicted);
    for (std::size_t i = 0; i < std::size(kFixed); ++i) {
      gains[i].push_back(one.gain_over(kFirstFixed + i));
      fmt::print(" {:.1f} |", 1e3 * one.ways[kFirstFixed + i].median());
    }
    over_best.push_back(one.gain_over(best));
    over_best_predicted.push_back(one.predicted_gain_over(best_fixed(one, true)));
    lanes.push_back(one.gain_over(kOneNetwork));
    fmt::print(" {:.3f} | {:.3f} |\n", over_best.back(), over_best_predicted.back());
    for (const Way& way : one.ways) off[0].push_back(way.median() / way.predicted);
  }
  fmt::print("\nMedians of {} layers, time over that of the planned one:\n\n", cases.size());
  for (std::size_t i = 0; i < std::size(kFixed); ++i) {
    fmt::print("- degree {}, one network: {:.3f}\n", kFixed[i], quantile(gains[i], 0.5));
  }
  fmt::print("- of these the best for each layer: {:.3f} (predicted {:.3f})\n",
             quantile(over_best, 0.5), quantile(over_best_predicted, 0.5));
  fmt::print("- the planned degrees, one network: {:.3f}\n", quantile(lanes, 0.5));
  fmt::print("- measured over predicted, all ways: {:.3f} ({:.3f} to {:.3f})\n",
             quantile(off[0], 0.5), quantile(off[0], 0.0), quantile(off[0], 1.0));
}

void run(World& world, int rounds) {
  if (world.size() != 2 * kPerNode) throw std::runtime_error("two nodes of two ranks are needed");
  const ExpertNodes nodes(world, kPerNode);
  const MeasuredNodes measured(world, nodes);
  std::vector<Case> cases = make_cases(measured.machine);
  nodes.run_in_background();
  for (int round = 0; round < rounds; ++round) {
    for (Case& one : cases) {
      for (Way& way : one.ways) {
        way.runs.push_back(measured_seconds(world, nodes, one.layer, way.plan));
      }
    }
  }
  if (world.rank() != 0) return;
  measured.print();
  fmt::print("Rounds: {}\n\n", rounds);
  print_table(cases);
}

}  // namespace
}  // namespace heddle

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 3;
  heddle::run_joined_rank([&](heddle::World& world) { heddle::run(world, rounds); });
}
