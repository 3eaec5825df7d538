#include "planner/context_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/strings.h"
#include "model/parallel_plan.h"
#include "planner/collectives.h"

namespace heddle::planner {
namespace {

/// Those that need no second look: times this near are equal.
constexpr double kSameTime = 0.01;

/// By rank, in both passes.
std::vector<std::int64_t> sent_bytes(const ContextPlan& plan, const ElementBytes& sizes) {
  std::vector<std::int64_t> sent(plan.held.size());
  for (const ContextPass* pass : {&plan.forward, &plan.backward}) {
    const auto counts = count_by_rank(*pass, plan.shape);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      sent[rank] += bytes_of(counts[rank].sent, sizes);
    }
  }
  return sent;
}

/// Of the first rank: q, k and v for ranks that lack them. Heads are exchanged for tokens before
/// any pair is computed, and that is what a second forward repeats.
std::int64_t bytes_sent_again(const ContextPlan& plan, const ElementBytes& sizes) {
  std::int64_t again = 0;
  if (plan.shape.context_heads == 1) return again;
  for (const Round& round : plan.forward.by_rank.front()) {
    if (!round.tiles.empty()) break;
    for (const Message& message : round.sends) {
      again += bytes_of(traffic_of(message, plan.shape), sizes);
    }
  }
  return again;
}

double pairs_of_first(const ContextPass& pass) {
  std::int64_t pairs = 0;
  for (const Round& round : pass.by_rank.front()) {
    for (const Tile& tile : round.tiles) pairs += head_pairs(tile);
  }
  return static_cast<double>(pairs);
}

}  // namespace

ContextShape context_shape(const Job& job, const Candidate& candidate) {
  const ParallelRequest& request = candidate;
  ContextShape shape = ParallelPlan{request}.context_shape(job.spec);
  shape.documents.assign(static_cast<std::size_t>(candidate.sequences), job.seq_len);
  shape.tokens = candidate.sequences * job.seq_len;
  return resolved(shape);
}

std::vector<ContextShape> context_shapes(const Job& job, const Candidate& candidate) {
  const ContextShape common = context_shape(job, candidate);
  std::vector<ContextShape> shapes;
  for (const BlockSpec& block : job.spec.blocks) {
    shapes.push_back(common);
    shapes.back().window = block.window;
  }
  return shapes;
}

ContextTimes message_times(const Machine& machine, int ranks, int stride) {
  const GroupShape group = group_shape(machine, ranks, stride);
  const Link &near = machine.links.front(), &far = outer_link(machine, group);
  const auto byte = [](const Link& link) { return 1.0 / (link.bytes_per_s * link.message); };
  return {.byte = byte(far),
          .message = far.latency_s,
          .near_ranks = group.per_server,
          .near_byte = byte(near),
          .near_message = near.latency_s};
}

ContextTimes context_times(const Machine& machine, const Job& job, const Candidate& candidate) {
  const double head_dim = static_cast<double>(job.spec.head_dim),
               heads = static_cast<double>(job.spec.heads) / candidate.tp;
  ContextTimes times = message_times(machine, candidate.cp, candidate.tp);
  times.pair = 4.0 * heads * head_dim /
               (machine.device.matrix_rate(job.stack.compute) *
                attention_efficiency(machine.software, head_dim));
  times.sizes.value = static_cast<int>(job.stack.element_bytes());
  return times;
}

ContextCost context_cost(const Machine& machine, const Job& job, const Candidate& candidate) {
  if (candidate.cp == 1) return {};
  const ContextShape common = context_shape(job, candidate);
  const ContextTimes times = context_times(machine, job, candidate);
  const double pair = times.pair / common.heads;
  const bool is_near = common.context_heads <= times.near_ranks;
  ContextCost cost{.method = common.method};
  if (cost.method == ContextMethod::usp) cost.context_heads = common.context_heads;
  std::map<std::optional<std::int64_t>, int> kinds;  // blocks by window
  for (const BlockSpec& block : job.spec.blocks) ++kinds[block.window];
  std::vector<double> sent(static_cast<std::size_t>(common.ranks));
  for (const auto& [window, blocks] : kinds) {
    ContextShape shape = common;
    shape.window = window;
    const ContextPlan plan = make_context_plan(shape);
    const PlayedContext forward = play_forward(plan, times), backward = play_backward(plan, times);
    const double computed_f = pair * pairs_of_first(plan.forward),
                 computed_b = pair * times.backward * pairs_of_first(plan.backward);
    const double share = static_cast<double>(blocks) / static_cast<double>(job.spec.blocks.size());
    cost.exposed_f += share * std::max(0.0, forward.makespan - computed_f);
    cost.exposed_b += share * std::max(0.0, backward.makespan - computed_b);
    cost.again += share * static_cast<double>(bytes_sent_again(plan, times.sizes)) *
                  (is_near ? times.near_byte : times.byte);
    cost.seconds += share * (forward.makespan + backward.makespan);
    const std::vector<std::int64_t> bytes = sent_bytes(plan, times.sizes);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      sent[rank] += share * static_cast<double>(bytes[rank]);
    }
  }
  cost.sent_bytes = std::llround(std::ranges::max(sent));
  return cost;
}

std::vector<ContextCost> compare_methods(const Machine& machine, const Job& job,
                                         const Candidate& candidate) {
  std::vector<ContextCost> compared;
  const auto add = [&](ContextMethod method, int context_heads = 0) {
    Candidate tried = candidate;
    tried.context = method;
    tried.context_order = ContextOrder::automatic;
    tried.context_heads = context_heads;
    const ParallelRequest& request = tried;
    ContextShape shape = ParallelPlan{request}.context_shape(job.spec);
    shape.tokens = tried.sequences * job.seq_len;
    if (problems_of(shape).empty()) compared.push_back(context_cost(machine, job, tried));
  };
  add(ContextMethod::ring);
  add(ContextMethod::gather);
  add(ContextMethod::ulysses);
  // Heads among the ranks of a server and a ring between servers, or half of the ranks each way.
  const int near = group_shape(machine, candidate.cp, candidate.tp).per_server;
  for (int heads = near < candidate.cp ? near : candidate.cp / 2; heads > 1; heads /= 2) {
    const std::size_t before = compared.size();
    add(ContextMethod::usp, heads);
    if (compared.size() > before) break;
  }
  add(ContextMethod::lightseq);
  add(ContextMethod::tokenring);
  std::ranges::stable_sort(compared, {}, &ContextCost::seconds);
  auto taken = compared.begin();
  for (auto one = compared.begin(); one != compared.end(); ++one) {
    if (one->seconds > (1.0 + kSameTime) * compared.front().seconds) break;
    if (one->sent_bytes < taken->sent_bytes) taken = one;
  }
  std::rotate(compared.begin(), taken, taken + 1);
  return compared;
}

std::string describe(const ContextCost& cost) {
  std::string text(name_of(cost.method));
  if (cost.context_heads > 1) text += fmt::format(" with heads over {}", cost.context_heads);
  return text;
}

std::string why_method(const std::vector<ContextCost>& compared) {
  std::string text;
  for (const ContextCost& cost : compared) {
    text += fmt::format("{}{} waits {:.3g} ms of {:.0f} and sends {}", text.empty() ? "" : ", ",
                        describe(cost), 1e3 * (cost.exposed_f + cost.exposed_b), 1e3 * cost.seconds,
                        format_bytes(static_cast<double>(cost.sent_bytes)));
  }
  return text;
}

}  // namespace heddle::planner
