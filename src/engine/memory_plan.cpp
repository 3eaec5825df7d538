#include "engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <type_traits>
#include <vector>

#include "engine/train_step.h"
#include "ops/attention.h"
#include "parallel/step/step_calls.h"

namespace heddle {

namespace {

/// What a layer's attention takes beside tensors.
std::size_t attention_bytes(const ModelSpec& spec, DType dtype, const ParallelPlan& plan,
                            const BatchShape& batch, const StepPlace& place) {
  if (place.device.kind != Device::Kind::cuda || dtype != DType::bf16) return 0;
  const std::int64_t tp = plan.mesh.size(Axis::tp), cp = plan.mesh.size(Axis::cp);
  const std::int64_t heads = spec.heads / tp,
                     key_heads = std::max<std::int64_t>(1, spec.kv_heads / tp);
  const bool are_exact = place.deterministic && (spec.head_dim == 64 || spec.head_dim == 128);
  if (place.deterministic && !are_exact) {
    return ops::stored_score_bytes(batch.sequences, batch.seq_len, heads, spec.head_dim);
  }
  return ops::gradient_sum_bytes(batch.sequences, (batch.seq_len + cp - 1) / cp, heads, key_heads,
                                 spec.head_dim, are_exact);
}

/// Those that differ, of the steps in which exchanges between sites go on as they do ever after:
/// in which one begins or ends, or has just done so.
std::set<std::int64_t> distinct_steps(const OuterPolicy& policy) {
  std::set<std::int64_t> steps;
  for (const std::int64_t window : {0, 1}) {
    for (int fragment = 0; fragment < policy.fragments; ++fragment) {
      const std::int64_t begins = window * policy.every + policy.first_step(fragment);
      for (const std::int64_t at : {begins, begins + policy.delay}) steps.insert({at, at + 1});
    }
  }
  return steps;
}

/// A step that was run dry.
struct DryStep {
  StepPlan plan;
  BytesByTag largest{};  ///< each tag's own maximum
};

DryStep play(const ModelSpec& spec, const BuildOptions& options, const ParallelPlan& plan, int rank,
             const BatchShape& batch, const StepPlace& place) {
  Memory memory(Memory::Mode::dry, place.device), host = memory.for_host();
  Stream stream = Stream::dry(place.device);
  const Mesh mesh = Mesh::recorded(plan.mesh, rank);
  Model model(spec, options, plan, mesh, ParamStore::Purpose::training, memory);
  model.leave_out(place.left_out);
  const auto optimizer = make_optimizer(place.optimizer, model.store());
  const OuterPolicy& policy = plan.policy.outer;
  std::optional<OuterSteps> outer;
  if (policy.every > 0) outer.emplace(model.store(), model.units(), policy);
  std::optional<PeerCopy> copy;
  make_copy(model, place.copies, options, place.optimizer, memory, copy);
  TrainStep step(model, *optimizer, stream, memory, outer ? &*outer : nullptr,
                 copy_exchange(mesh, plan.zero, place.copies, copy));
  // Operations check ids and positions also when they compute nothing, so these few bytes are real.
  const auto ids = [&] {
    const Tensor zeros = host.alloc({batch.sequences, batch.seq_len}, DType::i32, MemoryTag::data);
    std::ranges::fill(zeros.host<std::int32_t>(), 0);
    return zeros;
  };
  std::vector<MicroBatch> batches;
  batches.reserve(static_cast<std::size_t>(batch.microbatches));
  for (int i = 0; i < batch.microbatches; ++i) {
    batches.push_back({.ids = ids(), .targets = ids(), .positions = ids(), .first_key = ids()});
  }
  StepPlan result;
  result.before_step = memory.stats().live;
  std::size_t kept = 0;
  step.watch([&](const std::string&, int, TrainStep::Pass, const Tensor&) {
    const auto activations = static_cast<std::size_t>(MemoryTag::activations);
    kept = std::max(kept, memory.stats().live[activations]);
  });
  if (outer) outer->skip_to(-1);  // nothing begins or ends
  step.run(batches, {}, 1.0);
  result.traffic = mesh.traffic();
  if (place.is_behind_warm_up) {
    result.later = {.first = result.traffic, .traffic = {}};
    if (outer) outer->skip_to(-1);
    step.run(batches, {}, 1.0);
    result.later->traffic = mesh.traffic() - result.traffic;
  }
  if (outer) {
    for (const std::int64_t at : distinct_steps(policy)) {
      outer->skip_to(at - 1);
      step.run(batches, {}, 1.0);
    }
    for (int fragment = 0; fragment < policy.fragments; ++fragment) {
      result.outer += outer_traffic(plan, model.units(), policy.first_step(fragment));
    }
  }
  const MemoryStats stats = memory.stats();
  result.memory = {stats.at_peak, stats.peak, stats.reserved, kept};
  const std::size_t beside = attention_bytes(spec, options.dtype, plan, batch, place);
  result.memory.at_peak[static_cast<std::size_t>(MemoryTag::workspace)] += beside;
  result.memory.peak += beside;
  result.memory.reserved += beside;
  return {result, stats.peak_by_tag};
}

/// Calls visit(number of a, the same number of b) for all there is in a plan.
template <class Visit>
void with_numbers(StepPlan& a, StepPlan& b, const Visit& visit) {
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    visit(a.memory.at_peak[tag], b.memory.at_peak[tag]);
    visit(a.before_step[tag], b.before_step[tag]);
  }
  visit(a.memory.peak, b.memory.peak);
  visit(a.memory.reserved, b.memory.reserved);
  visit(a.memory.kept, b.memory.kept);
  const auto visit_traffic = [&](MeshTraffic& one, MeshTraffic& another) {
    one.with(another, [&](const char*, CommCounts& own, CommCounts& other) {
      for (std::size_t op = 0; op < kCommOps; ++op) {
        visit(own.by_op[op].calls, other.by_op[op].calls);
        visit(own.by_op[op].payload_bytes, other.by_op[op].payload_bytes);
        visit(own.by_op[op].wire_bytes, other.by_op[op].wire_bytes);
      }
    });
  };
  visit_traffic(a.traffic, b.traffic);
  if (!a.later || !b.later) return;
  visit_traffic(a.later->first, b.later->first);
  visit_traffic(a.later->traffic, b.later->traffic);
}

/// b - a, number by number; unsigned ones wrap around, and back when they are added again.
StepPlan growth(StepPlan a, StepPlan b) {
  with_numbers(b, a, [](auto& later, const auto& earlier) { later -= earlier; });
  return b;
}

bool are_equal(StepPlan a, StepPlan b) {
  bool equal = true;
  with_numbers(a, b, [&](const auto& one, const auto& other) { equal = equal && one == other; });
  return equal;
}

/// After so many micro-batches ranks do again what they did.
int period_of(const ParallelPlan& plan) {
  const int ranks = plan.mesh.size(Axis::pp);
  if (!plan.takes_routes()) return ranks;
  const auto routes = make_routes(ranks, plan.skip, plan.routes);
  return std::lcm(ranks, static_cast<int>(routes.size()));
}

/// From how many micro-batches on a step only repeats what it did before, when one period of
/// micro-batches is added.
int steady_from(const ParallelPlan& plan) {
  const int ranks = plan.mesh.size(Axis::pp);
  // Interleaving makes groups of `ranks` micro-batches and gives each of the first ones one more
  // until all have a place.
  return plan.chunks > 1 ? ranks * (ranks + 4) : 4 * ranks;
}

/// Three steps of n, n + period and n + 2 period micro-batches, from which any larger number of the
/// same remainder follows: another period always adds the same.
class SteadySteps {
 public:
  template <class Play>
  SteadySteps(const Play& play, int microbatches, int period)
      : period_(period),
        last_(microbatches + 2 * period),
        steps_{play(microbatches), play(microbatches + period), play(last_)} {}

  /// Whether it adds the same. The peak must have come to where memory grows most: with `gpipe`,
  /// few micro-batches may hold less in activations than the optimizer's step takes for itself.
  bool are_steady(bool reserves_in_chunks) const {
    StepPlan once = growth(steps_[0].plan, steps_[1].plan);
    StepPlan again = growth(steps_[1].plan, steps_[2].plan);
    if (reserves_in_chunks) once.memory.reserved = again.memory.reserved;
    for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
      if (steps_[2].largest[tag] - steps_[1].largest[tag] != again.memory.at_peak[tag]) {
        return false;
      }
    }
    return are_equal(once, again);
  }

  StepPlan at(int microbatches) const {
    const auto periods = (microbatches - last_) / period_;
    StepPlan plan = steps_[2].plan, more = growth(steps_[1].plan, steps_[2].plan);
    with_numbers(plan, more, [&](auto& number, const auto& grows) {
      using Number = std::remove_cvref_t<decltype(number)>;
      number += static_cast<Number>(periods) * grows;
    });
    return plan;
  }

  int last() const { return last_; }
  const StepPlan& last_plan() const { return steps_[2].plan; }

 private:
  int period_, last_;
  std::array<DryStep, 3> steps_;
};

/// What so many tensors of the same size take from the system. A GPU's small blocks are cut from
/// chunks: how many from one is found by taking them.
std::size_t reserved_bytes(std::size_t tensors, std::int64_t ids, Device device) {
  Memory memory(Memory::Mode::dry, device);
  std::vector<Tensor> held;
  const auto take = [&] {
    held.push_back(memory.alloc({ids}, DType::i32, MemoryTag::data));
    return memory.stats().reserved;
  };
  const std::size_t chunk = take();
  while (take() == chunk) continue;
  const std::size_t in_chunk = held.size() - 1;
  return (tensors + in_chunk - 1) / in_chunk * chunk;
}

/// On a GPU, what is reserved grows in leaps: by as many chunks as the further micro-batches fill.
std::size_t reserved_in_chunks(const SteadySteps& steps, const StepPlan& plan,
                               const BatchShape& batch, Device device) {
  constexpr std::size_t kTensors = 4;  // of a MicroBatch
  const auto tensors = kTensors * static_cast<std::size_t>(batch.microbatches - steps.last());
  const std::int64_t ids = batch.sequences * batch.seq_len;
  const auto bytes = static_cast<std::size_t>(ids) * size_of(DType::i32);
  const std::size_t others = plan.memory.peak - steps.last_plan().memory.peak -
                             tensors * Memory::rounded_bytes(bytes, device);
  return steps.last_plan().memory.reserved + others + reserved_bytes(tensors, ids, device);
}

/// Of one phase of the optimizer.
StepPlan plan_phase(const ModelSpec& spec, const BuildOptions& options, const ParallelPlan& plan,
                    int rank, const BatchShape& batch, const StepPlace& place) {
  const auto played = [&](int microbatches) {
    BatchShape shape = batch;
    shape.microbatches = microbatches;
    return play(spec, options, plan, rank, shape, place);
  };
  const int period = period_of(plan);
  const bool is_gpu = place.device.kind == Device::Kind::cuda;
  // Three steps are played where that is less than the one asked for.
  for (int first = steady_from(plan); first + 2 * period < batch.microbatches / 3; first *= 2) {
    const SteadySteps steps(played, first + (batch.microbatches - first) % period, period);
    if (!steps.are_steady(is_gpu)) continue;
    StepPlan found = steps.at(batch.microbatches);
    if (is_gpu) {
      found.memory.reserved = reserved_in_chunks(steps, found, batch, place.device);
    }
    return found;
  }
  return played(batch.microbatches).plan;
}

/// What `plan` makes of a step in the warm-up, and of one behind it.
template <class Plan>
StepPlan plan_phases(const StepPlace& place, const Plan& plan) {
  StepPlan found = plan(place);
  const auto later = behind_warm_up(place.optimizer);
  if (!later) return found;
  StepPlace frozen = place;
  frozen.optimizer = *later;
  frozen.is_behind_warm_up = true;
  const StepPlan second = plan(frozen);
  found.later = second.later;
  const std::size_t reserved = std::max(found.memory.reserved, second.memory.reserved);
  if (second.memory.peak > found.memory.peak) found.memory = second.memory;
  found.memory.reserved = reserved;
  return found;
}

}  // namespace

CommCounts outer_traffic(const ParallelPlan& plan, const RankUnits& units, std::int64_t step) {
  CommCounts counts;
  const OuterPolicy& policy = plan.policy.outer;
  const StepCalls calls(units, plan.policy, plan.mesh, {}, 0);
  for (int fragment = 0; fragment < policy.fragments; ++fragment) {
    if (!policy.begins(fragment, step) || !policy.has(units, fragment)) continue;
    calls.of({StepOp::Kind::outer_begin, fragment}, [&](const StepCall& call) {
      counts.by_op[static_cast<std::size_t>(call.op)].add(1, call.payload(), call.bytes);
    });
  }
  return counts;
}

StepPlan plan_step(const ModelSpec& spec, const BuildOptions& options, const ParallelPlan& plan,
                   int rank, const BatchShape& batch, const StepPlace& place) {
  return plan_phases(place, [&](const StepPlace& phase) {
    return plan_phase(spec, options, plan, rank, batch, phase);
  });
}

StepPlan plan_whole_step(const ModelSpec& spec, const BuildOptions& options,
                         const ParallelPlan& plan, int rank, const BatchShape& batch,
                         const StepPlace& place) {
  return plan_phases(place, [&](const StepPlace& phase) {
    return play(spec, options, plan, rank, batch, phase).plan;
  });
}

MemoryPlan plan_training_memory(const ModelSpec& spec, const BuildOptions& options,
                                std::int64_t sequences, std::int64_t seq_len, int microbatches) {
  return plan_step(spec, options, single_rank_plan(spec), 0,
                   {.sequences = sequences, .seq_len = seq_len, .microbatches = microbatches})
      .memory;
}

}  // namespace heddle
