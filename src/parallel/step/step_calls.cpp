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
    case StepOp::Kind::sum: {
      const StepSum& numbers = policy_.sums[static_cast<std::size_t>(op.what)];
      return sum(numbers.over, numbers.numbers * static_cast<std::int64_t>(sizeof(double)), visit);
    }
    case StepOp::Kind::post:
      return visit({.axes = {Axis::pp}, .op = CommOp::recv, .bytes = sizes_.message});
    case StepOp::Kind::send:
      return visit({.axes = {Axis::pp}, .op = CommOp::send, .bytes = sizes_.message});
    case StepOp::Kind::begin: return of_vocabulary(op.action->collective, visit);
    default: return;
  }
}

void StepCalls::of_layers(const StepOp& op, const Visit& visit) const {
  const auto& [buckets, in_forward, in_f, in_b, in_w] =
      units_.units[static_cast<std::size_t>(op.what)];
  const auto pass = [&](const std::vector<RankUnits::Call>& calls) {
    for (const auto& [over, comm_op, bytes] : calls) {
      visit({.axes = {over}, .op = comm_op, .bytes = bytes});
    }
  };
  switch (op.action->act) {
    case Act::f:
    case Act::vocab_s:
    case Act::embed_f: return pass(in_f);
    case Act::b:
    case Act::vocab_t:
    case Act::embed_b: return pass(in_b);
    case Act::w: return pass(in_w);
    default: pass(in_b); return pass(in_w);
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

}  // namespace heddle
