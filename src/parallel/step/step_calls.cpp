#include "parallel/step/step_calls.h"

#include <span>

namespace heddle {
namespace {

/// Ranks agree on the largest number of bytes that one of them has.
constexpr std::int64_t kAgreementBytes = sizeof(double);

}  // namespace

void CallSizes::set_message(std::int64_t elements, const Compression& compression) {
  message = element_bytes * elements;
  const auto codec = compression.codec(Compression::Kind::pipeline);
  if (codec == nullptr || message < compression.min_bytes) return;
  message_stands_for = message;
  message = static_cast<std::int64_t>(codec->encoded_bytes(elements));
  agrees_on_messages = codec->is_lossless();
}

void StepCalls::of(const StepOp& op, const Visit& visit) const {
  const auto bucket = [&]() -> const RankUnits::Bucket& {
    return units_.buckets[static_cast<std::size_t>(op.what)];
  };
  switch (op.kind) {
    case StepOp::Kind::compute: return of_layers(op, visit);
    case StepOp::Kind::fetch:
    case StepOp::Kind::gather: return of_values(bucket(), visit);
    case StepOp::Kind::reduce:
    case StepOp::Kind::beside_experts:
    case StepOp::Kind::beside_rest: return of_gradients(op, visit);
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
    case StepOp::Kind::receive:
    case StepOp::Kind::send: return of_messages(op.kind, visit);
    case StepOp::Kind::begin: return of_vocabulary(op.action->collective, visit);
    default: return;
  }
}

void StepCalls::of_values(const RankUnits::Bucket& bucket, const Visit& visit) const {
  const std::int64_t payload = sizes_.element_bytes * bucket.elements;
  if (bucket.coded_values == 0) {
    return visit({.axes = bucket.over, .op = CommOp::all_gather, .bytes = payload});
  }
  if (bucket.agrees_on_values) visit({.axes = bucket.over, .bytes = kAgreementBytes});
  visit({.axes = bucket.over,
         .op = CommOp::all_gather,
         .bytes = mesh_.size(bucket.over) * bucket.coded_values,
         .stands_for = payload});
}

void StepCalls::of_gradients(const StepOp& op, const Visit& visit) const {
  const RankUnits::Bucket& bucket = units_.buckets[static_cast<std::size_t>(op.what)];
  if (bucket.over.empty()) return;
  const std::int64_t parts = bucket.zero == 0 ? 1 : mesh_.size(bucket.over);
  const std::int64_t payload =
      sizes_.gradient_bytes * (op.slice.is_all() ? bucket.elements : parts * op.slice.count());
  if (bucket.coded_gradients == 0) {
    return visit({.axes = bucket.over,
                  .op = bucket.zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter,
                  .bytes = payload});
  }
  StepCall call{.axes = bucket.over,
                .op = CommOp::all_to_all,
                .bytes = mesh_.size(bucket.over) * bucket.coded_gradients,
                .stands_for = payload};
  visit(call);
  if (bucket.zero > 0) return;
  call.op = CommOp::all_gather;
  visit(call);
}

/// Where sizes are agreed upon, the message itself can only be waited for when its size is there.
void StepCalls::of_messages(StepOp::Kind kind, const Visit& visit) const {
  const bool agrees = sizes_.agrees_on_messages;
  StepCall call{.axes = {Axis::pp}, .op = kind == StepOp::Kind::send ? CommOp::send : CommOp::recv};
  if (agrees && kind != StepOp::Kind::receive) {
    call.bytes = kAgreementBytes;
    visit(call);
  }
  if (kind == (agrees ? StepOp::Kind::post : StepOp::Kind::receive)) return;
  call.bytes = sizes_.message;
  call.stands_for = sizes_.message_stands_for;
  visit(call);
}

void StepCalls::of_layers(const StepOp& op, const Visit& visit) const {
  const RankUnits::Unit& unit = units_.units[static_cast<std::size_t>(op.what)];
  const Act act = op.action->act;
  if (act == Act::w) return;
  const bool is_forward = act == Act::f || act == Act::vocab_s || act == Act::embed_f;
  for (const auto& [over, comm_op, bytes, payload] : is_forward ? unit.in_f : unit.in_b) {
    visit({.axes = {over}, .op = comm_op, .bytes = bytes, .stands_for = payload});
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
  const std::span<const Axis> axes = axes_of(view_of(over));
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {  // clang 14 reverses no spans
    if (!over.contains(*axis) || mesh_.size(*axis) == 1) continue;
    visit({.axes = {*axis}, .op = CommOp::all_reduce, .bytes = bytes});
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
      counts_of(call).by_op[static_cast<std::size_t>(call.op)].add(1, call.payload(), call.bytes);
    });
  });
  return traffic;
}

}  // namespace heddle
