#include "planner/site_times.h"

#include <algorithm>

#include "planner/codec_time.h"
#include "planner/collectives.h"
#include "planner/step_units.h"
#include "simulator/play_sites.h"

namespace heddle::planner {
namespace {

/// Bytes of memory that a value moves through, beside the codec, as OuterSteps goes about it: its
/// difference is made, looked at and hashed; the mean updates velocity and outer weights; and the
/// site's own weights take their share.
constexpr double kBeginBytes = 36, kEndBytes = 76, kMixBytes = 36, kTakeBytes = 8;
/// Calls of kernels for each tensor, of an exchange's begin and of its end.
constexpr double kBeginCalls = 5, kEndCalls = 14;

/// What a rank holds of a fragment.
struct Share {
  double values = 0, tensors = 0;
};

Share share_of(const OuterPolicy& policy, const RankUnits& units, int fragment) {
  Share share;
  for (const RankUnits::Bucket& bucket : units.buckets) {
    const int block = units.units[static_cast<std::size_t>(bucket.owner)].block;
    if (policy.fragment_of(block) != fragment) continue;
    for (const std::int64_t values : bucket.parts) {
      share.values += static_cast<double>(values);
      ++share.tensors;
    }
  }
  return share;
}

class SiteBuilder {
 public:
  SiteBuilder(const Machine& machine, const Job& job, const Candidate& plan, double inner_seconds)
      : machine_(machine),
        policy_(job.outer),
        plan_(plan),
        inner_seconds_(inner_seconds),
        units_(step_units(machine, job, plan, block_cost(machine, job, without_sites(plan)),
                          step_schedule(plan, plan.pp).rank_of_stage)) {
    step_policy_.outer = policy_;
  }

  SiteTimes run() {
    SiteCourse course{.step_seconds = inner_seconds_, .window = policy_.every};
    for (int rank = 0; rank < plan_.pp; ++rank) add(course, rank);
    const PlayedSites played = play_sites(course);
    times_.step_seconds = played.step_seconds;
    times_.inner_seconds = inner_seconds_;
    times_.waited_seconds = played.waited_seconds;
    times_.work_seconds = played.work_seconds;
    times_.utilisation = played.utilisation;
    return times_;
  }

 private:
  /// Ranks of a pipeline work at the same time: the work of a fragment is that of the rank that has
  /// most of it.
  void add(SiteCourse& course, int rank) {
    const RankUnits& units = units_.ranks[static_cast<std::size_t>(rank)].units;
    const StepCalls calls(units, step_policy_, units_.mesh, {}, 0);
    double sent = 0.0;
    for (int fragment = 0; fragment < policy_.fragments; ++fragment) {
      if (!policy_.has(units, fragment)) continue;
      SiteExchange exchange{.turn = static_cast<int>(policy_.first_step(fragment) % policy_.every),
                            .begins_at = inner_seconds_,
                            .steps_under_way = plan_.overlap ? policy_.delay : 0,
                            .awaited_at = inner_seconds_,
                            .link = rank};
      calls.of({StepOp::Kind::outer_begin, fragment}, [&](const StepCall& call) {
        const double bytes = to_others(call);
        sent += bytes;
        exchange.link_seconds += bytes / rate();
        const double latency = ways() * link().latency_s;
        exchange.latency = are_together() ? latency : exchange.latency + latency;
        if (rank > 0) return;
        times_.traffic.by_op[static_cast<std::size_t>(call.op)].add(1, call.payload(), call.bytes);
      });
      if (is_largest(rank, fragment)) set_work(exchange, share_of(policy_, units, fragment));
      course.exchanges.push_back(exchange);
    }
    times_.sent_bytes = std::max(times_.sent_bytes, sent / policy_.every);
  }

  bool is_largest(int rank, int fragment) const {
    const auto values = [&](int of) {
      return share_of(policy_, units_.ranks[static_cast<std::size_t>(of)].units, fragment).values;
    };
    const double own = values(rank);
    for (int other = 0; other < plan_.pp; ++other) {
      if (values(other) > own || (values(other) == own && other < rank)) return false;
    }
    return true;
  }

  void set_work(SiteExchange& exchange, const Share& share) const {
    const codec::Codec* const codec = policy_.codec.get();
    const double mix = policy_.mix == 1.0 ? 0.0 : policy_.mix > 0.0 ? kMixBytes : kTakeBytes;
    const double moved = share.values / machine_.device.memory_bytes_per_s;
    const double calls = share.tensors * machine_.device.kernel_s;
    exchange.work_before = kBeginBytes * moved + kBeginCalls * calls +
                           encode_seconds(machine_, codec, share.values, policy_.feedback > 0.0);
    exchange.work_behind =
        (kEndBytes + mix) * moved + (kEndCalls + plan_.sites) * calls +
        plan_.sites * (codec != nullptr ? decode_seconds(machine_, codec, share.values)
                                        : kPlainBytes * moved);
  }

  const Link& link() const { return machine_.links.back(); }
  double rate() const {
    return link().is_direct ? direct_bytes_per_s(link(), plan_.sites)
                            : link().bytes_per_s * link().collective;
  }
  /// How often an exchange waits for others on its way.
  int ways() const { return link().is_direct ? 1 : plan_.sites - 1; }
  /// The bytes and the note of an exchange travel at the same time.
  bool are_together() const {
    return plan_.overlap && calls_at_once(machine_, {plan_.sites, 1}) > 1;
  }
  /// What a rank sends of an all-gather of so many bytes, whatever its form.
  double to_others(const StepCall& call) const {
    return static_cast<double>(call.bytes) / plan_.sites * (plan_.sites - 1);
  }

  static constexpr double kPlainBytes = 12;  // read twice and written, without a codec

  const Machine& machine_;
  const OuterPolicy& policy_;
  const Candidate& plan_;
  const double inner_seconds_;
  const StepUnits units_;
  StepPolicy step_policy_;
  SiteTimes times_;
};

}  // namespace

Candidate without_sites(Candidate plan) {
  plan.sites = 1;
  return plan;
}

SiteTimes site_times(const Machine& machine, const Job& job, const Candidate& plan,
                     double inner_seconds) {
  return SiteBuilder(machine, job, plan, inner_seconds).run();
}

}  // namespace heddle::planner
