#include "model/rank_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "parallel/exchange/coded_activations.h"
#include "parallel/exchange/coded_rows.h"

namespace heddle {
namespace {

TensorRules tensor_rules(const ParallelPlan& plan, DType dtype, const Mesh& mesh, Memory& memory,
                         const std::shared_ptr<BadNotes>& notes) {
  Communicator& tp = mesh.comm(Axis::tp);
  if (plan.compress.codec(Compression::Kind::tensor) == nullptr) return {tp, plan.sequence};
  return {tp, plan.sequence,
          std::make_shared<CodedActivations>(plan.compress, dtype, tp, memory, notes)};
}

/// What a machine file decides has to be decided.
void require_planned(const ParallelPlan& plan, ParamStore::Purpose purpose) {
  const auto refuse = [&](const char* what, const char* hint) {
    throw Error(ErrorCode::usage,
                fmt::format("parallel.ep_exchange = \"{}\" leaves {} open where no machine file "
                            "is read",
                            plan.ep_exchange.text(), what),
                hint);
  };
  if (plan.ep_exchange.leaves_degrees()) refuse("degrees", "name them, as in degree=2/4");
  if (purpose == ParamStore::Purpose::training && plan.ep_exchange.plans_windows() &&
      plan.policy.windows.empty()) {
    refuse("windows", "leave out windows=planned");
  }
}

ExpertRanks expert_ranks(const ParallelPlan& plan, std::int64_t width, DType dtype,
                         const Mesh& mesh, Memory& memory, const std::shared_ptr<BadNotes>& notes) {
  const int ep = mesh.size(Axis::ep), etp = mesh.size(Axis::etp);
  const ExchangePlan exchange = plan.ep_exchange.plan(etp);
  ExpertRanks ranks{.ep = &mesh.comm(Axis::ep),
                    .etp = &mesh.comm(Axis::etp),
                    .choice = std::make_shared<ExchangeChoice>(plan.ep_exchange, etp, ep),
                    .most_rows = plan.ep_rows,
                    .planned_rows = plan.planned_expert_rows};
  if (plan.compress.codec(Compression::Kind::experts) != nullptr) {
    ranks.hook = std::make_shared<CodedRows>(plan.compress, width, dtype, memory, notes);
  }
  const bool overlaps = plan.ep_exchange.learns() || plan.ep_exchange.takes_turns() ||
                        exchange.degree_forward > 1 || exchange.degree_backward > 1;
  for (Communicator* const lane : {ranks.ep, ranks.etp}) {
    lane->run_in_background(overlaps && plan.overlap);
  }
  return ranks;
}

DecoderPart part_of(const ParallelPlan& plan, const Mesh& mesh) {
  DecoderPart part{.vocabulary = plan.vocabulary, .unties = mesh.size(Axis::pp) > 1};
  if (plan.divides_vocabulary_over_pp()) {
    part.pipeline = &mesh.comm(Axis::pp);
    part.head_input_grad =
        plan.vocabulary_algorithm == 1 ? SplitHead::InputGrad::in_t : SplitHead::InputGrad::early;
  }
  if (mesh.size(Axis::cp) > 1) part.context = &mesh.comm(Axis::cp);
  for (const int stage : plan.stages_of(mesh.coord(Axis::pp))) {
    part.stages.push_back(plan.units_of_stage[static_cast<std::size_t>(stage)]);
  }
  return part;
}

void add_stages(RankModel& rank, const ParallelPlan& plan, int pp_rank) {
  rank.units.stages.resize(static_cast<std::size_t>(plan.stages()));
  int first = 0;
  std::size_t index = 0;
  for (const int stage : plan.stages_of(pp_rank)) {
    const auto& labels = rank.decoder.labels[index++];
    rank.labels.insert(rank.labels.end(), labels.begin(), labels.end());
    const int count = static_cast<int>(labels.size());
    rank.units.stages[static_cast<std::size_t>(stage)] = {first, count};
    first += count;
  }
  if (!plan.divides_vocabulary_over_pp()) return;
  rank.units.embedding = first;
  rank.units.head = first + 1;
  rank.labels.push_back({UnitLabel::Kind::embedding});
  rank.labels.push_back({UnitLabel::Kind::head});
}

}  // namespace

RankModel build_rank_model(const ModelSpec& spec, const BuildOptions& options,
                           const ParallelPlan& plan, const Mesh& mesh, ParamStore::Purpose purpose,
                           Memory& memory) {
  RankModel rank;
  if (!plan.compress.is_none()) rank.notes = std::make_shared<BadNotes>(memory);
  DecoderPart part = part_of(plan, mesh);
  if (mesh.size(Axis::tp) > 1) {
    part.tensor = tensor_rules(plan, options.dtype, mesh, memory, rank.notes);
  }
  if (plan.divides_experts()) {
    require_planned(plan, purpose);
    part.experts = expert_ranks(plan, spec.hidden, options.dtype, mesh, memory, rank.notes);
  }
  rank.decoder = build_decoder(spec, options, memory, part);
  if (mesh.size(Axis::pp) > 1 && plan.compress.codec(Compression::Kind::pipeline) != nullptr) {
    rank.messages = std::make_unique<CodedMessages>(plan.compress, memory, rank.notes);
  }
  rank.layers = rank.decoder.unit_pointers();
  rank.store = std::make_unique<ParamStore>(rank.layers,
                                            ParamStore::Options{.dtype = options.dtype,
                                                                .purpose = purpose,
                                                                .zero = plan.zero,
                                                                .compress = plan.compress,
                                                                .retakes_steps = plan.retakes_steps,
                                                                .notes = rank.notes},
                                            mesh, memory);
  rank.units = rank.store->units();
  add_stages(rank, plan, mesh.coord(Axis::pp));
  for (std::size_t unit = 0; unit < rank.labels.size(); ++unit) {
    const UnitLabel& label = rank.labels[unit];
    if (label.kind == UnitLabel::Kind::block) rank.units.units[unit].block = label.block;
  }
  return rank;
}

void add_layer_calls(RankModel& rank, const Mesh& mesh, const CostShape& shape) {
  const auto axis_of = [&](const Communicator* over) {
    for (const Axis axis : axes_of(View::dense)) {
      if (&mesh.comm(axis) == over) return axis;
    }
    for (const Axis axis : {Axis::ep, Axis::etp}) {
      if (mesh.size(axis) > 1 && &mesh.comm(axis) == over) return axis;
    }
    HEDDLE_CHECK(false, "a layer calls a communicator that is no axis");
  };
  const auto calls = [&](const std::vector<LayerCall>& made) {
    std::vector<RankUnits::Call> all;
    for (const LayerCall& call : made) {
      if (call.over->size() > 1) {
        all.push_back({axis_of(call.over), call.op, call.bytes, call.payload});
      }
    }
    return all;
  };
  for (std::size_t unit = 0; unit < rank.layers.size(); ++unit) {
    // The head of a divided vocabulary is trained in passes whose exchanges are the schedule's.
    if (static_cast<int>(unit) == rank.units.head) continue;
    const Cost cost = rank.layers[unit]->cost(shape);
    rank.units.units[unit].in_f = calls(cost.calls_f);
    rank.units.units[unit].in_b = calls(cost.calls_b);
  }
}

}  // namespace heddle
