#include "parallel/step/step_calls.h"

#include <ranges>

namespace heddle {

void StepCalls::of(const StepOp& op, const Visit& visit) const {
  const auto bucket = [&]() -> const RankUnits::Bucket& {
    return units_.buckets[static_cast<std::size_t>(op.what)];
  };
  const auto whole_values = [&] {
    visit({.axes = bucket().over,
           .op = CommOp::all_gather,
           .bytes = sizes_.element_bytes * bucket().elements});
  };
  switch (op.kind) {
    case StepOp::Kind::compute: return of_layers(op, visit);
    case StepOp::Kind::fetch:
    case StepOp::Kind::gather: return whole_values();
    case StepOp::Kind::reduce:
      if (bucket().over.empty()) return;
      return visit({.axes = bucket().over,
                    .op = bucket().zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter,
                    .bytes = sizes_.gradient_bytes * bucket().elements});
    case StepOp::Kind::rest:
      for (const auto& [over, elements] : bucket().sums) {
        sum(over, sizes_.gradient_bytes * elements, visit);
      }
      return;
    case StepOp::Kind::tie:
      if (units_.tie != RankUnits::Tie::ends) return;
      return visit(
          {.on = StepCall::On::ends, .bytes = sizes_.gradient_bytes * units_.tied_elements});
    case StepOp::Kind::local:
      for (const RankUnits::Joint& joint : units_.joint) {
        for (const auto& [of, own] : joint.sums) {
          if (of == op.what) sum(own.over, sizes_.gradient_bytes * own.elements, visit);
        }
      }
      return;
    case StepOp::Kind::local_tie:
      if (units_.tie != RankUnits::Tie::ends) return;
      return visit(
          {.on = StepCall::On::ends, .bytes = sizes_.gradient_bytes * units_.tied_whole_elements});
    case StepOp::Kind::vectors:
      for (const RankUnits::Joint& joint : units_.joint) {
        if (joint.vectors == 0) continue;
        visit({.axes = joint.over, .bytes = sizes_.gradient_bytes * joint.vectors});
      }
      return;
    case StepOp::Kind::update:
      for (const RankUnits::Joint& joint : units_.joint) {
        if (policy_.reduces || joint.dealt == 0) continue;
        visit({.axes = joint.over, .op = CommOp::all_to_all, .bytes = joint.dealt});
        visit({.axes = joint.over, .op = CommOp::all_gather, .bytes = joint.gathered});
      }
      return;
    case StepOp::Kind::sum: {
      const StepSum& numbers = policy_.sums[static_cast<std::size_t>(op.what)];
      return sum(numbers.over, numbers.numbers * static_cast<std::int64_t>(sizeof(double)), visit);
    }
    case StepOp::Kind::outer_begin: return of_outer(op.what, visit);
    case StepOp::Kind::post:
      return visit({.axes = {Axis::pp}, .op = CommOp::recv, .bytes = sizes_.message});
    case StepOp::Kind::send:
      return visit({.axes = {Axis::pp}, .op = CommOp::send, .bytes = sizes_.message});
    case StepOp::Kind::begin: return of_vocabulary(op.action->collective, visit);
    default: return;
  }
}

void StepCalls::of_layers(const StepOp& op, const Visit& visit) const {
  const RankUnits::Unit& unit = units_.units[static_cast<std::size_t>(op.what)];
  const Act act = op.action->act;
  if (act == Act::w) return;
  const bool is_forward = act == Act::f || act == Act::vocab_s || act == Act::embed_f;
  for (const auto& [over, comm_op, bytes] : is_forward ? unit.in_f : unit.in_b) {
    visit({.axes = {over}, .op = comm_op, .bytes = bytes});
  }
}

void StepCalls::of_outer(int fragment, const Visit& visit) const {
  for (const std::int64_t sent :
       {policy_.outer.sent_bytes(units_, fragment), static_cast<std::int64_t>(sizeof(SiteNote))}) {
    visit({.axes = {Axis::site}, .op = CommOp::all_gather, .bytes = sent * mesh_.size(Axis::site)});
  }
}

void StepCalls::of_vocabulary(Exchange exchange, const Visit& visit) const {
  const auto on_lane = [&](CommOp op, std::int64_t bytes) {
    visit({.on = StepCall::On::lanes, .op = op, .bytes = bytes});
  };
  if (has_one_source(exchange)) return on_lane(CommOp::broadcast, sizes_.head_input);
  if (exchange == Exchange::softmax) {
    on_lane(CommOp::all_gather, sizes_.statistics);
    if (vocabulary_ == 1) return;  // what the statistics scale is summed on a lane of its own
  }
  on_lane(CommOp::all_reduce, sizes_.head_input);
}

void StepCalls::sum(AxisSet over, std::int64_t bytes, const Visit& visit) const {
  for (const Axis axis : axes_of(view_of(over)) | std::views::reverse) {
    if (!over.contains(axis) || mesh_.size(axis) == 1) continue;
    visit({.axes = {axis}, .op = CommOp::all_reduce, .bytes = bytes});
  }
}

MeshTraffic step_traffic(const Schedule& lowered, int pp_rank, const RankUnits& units,
                         const StepPolicy& policy, const MeshShape& mesh, const CallSizes& sizes) {
  MeshTraffic traffic;
  const auto counts_of = [&](const StepCall& call) -> CommCounts& {
    if (call.on == StepCall::On::ends) return traffic.ends;
    if (call.on == StepCall::On::lanes) return traffic.lanes;
    for (const Axis axis : axes_of(view_of(call.axes))) {
      if (call.axes == AxisSet{axis}) return traffic.on(axis);
    }
    return traffic.groups;
  };
  const StepCalls calls(units, policy, mesh, sizes, lowered.vocabulary);
  tell_step(lowered, pp_rank, units, policy, [&](const StepOp& op) {
    calls.of(op, [&](const StepCall& call) {
      auto& [number, bytes] = counts_of(call).by_op[static_cast<std::size_t>(call.op)];
      ++number;
      bytes += call.bytes;
    });
  });
  return traffic;
}

}  // namespace heddle
