#include "planner/experts_cost.h"

#include <algorithm>

#include "planner/codec_time.h"
#include "planner/collectives.h"
#include "planner/experts_schedule.h"
#include "planner/gemm.h"
#include "planner/two_level_exchange.h"

namespace heddle::planner {
namespace {

using ExpertCalls = std::vector<DryBlocks::ExpertCall>;

class ExpertsModel {
 public:
  ExpertsModel(const Machine& machine, const Job& job, const Candidate& candidate,
               const DryBlocks& dry)
      : machine_(machine),
        job_(job),
        candidate_(candidate),
        dry_(dry),
        plan_(candidate.ep_exchange.plan(candidate.etp)),
        ep_(group_shape(machine, candidate.ep, candidate.etp)),
        etp_(group_shape(machine, candidate.etp, 1)),
        codec_(job.compress.is_none() ? nullptr : job.compress.codec(Compression::Kind::experts)) {}

  ExpertsCost make() const {
    const Products products = this->products();
    const int forward = plan_.degree_forward, backward = plan_.degree_backward;
    const double there_f = row_bytes(dry_.experts_f) / 2.0,
                 there_b = row_bytes(dry_.experts_b) / 2.0;
    const double dispatch = waited(there_f, forward, products.up),
                 combine = waited(there_f, forward, products.down);
    // Gradients go the same ways, the products of the other matrix under each.
    const double back =
        waited(there_b, backward, products.down) + waited(there_b, backward, products.up);
    ExpertsCost cost{
        .exposed_f = dispatch + combine + others(dry_.experts_f, false),
        .exposed_b = back + others(dry_.experts_b, false),
        .again = dispatch + (combines_again() ? combine : 0.0) + others(dry_.experts_f, true)};
    cost.exposed_f /= dry_.kinds;
    cost.exposed_b /= dry_.kinds;
    cost.again /= dry_.kinds;
    return cost;
  }

 private:
  struct Products {
    double up = 0, down = 0;  ///< seconds of a pass, all experts of a rank
  };

  static double payload(const LayerCall& call) {
    return static_cast<double>(std::max(call.bytes, call.payload));
  }
  /// Beside rows, numbers of rows travel.
  static bool has_rows(const DryBlocks::ExpertCall& one, const ExpertCalls& calls) {
    if (one.over != Axis::ep || one.call.op != CommOp::all_to_all) return false;
    return std::ranges::all_of(calls, [&](const DryBlocks::ExpertCall& other) {
      return other.over != Axis::ep || other.call.op != CommOp::all_to_all ||
             payload(other.call) <= 2.0 * payload(one.call);
    });
  }
  double row_bytes(const ExpertCalls& calls) const {
    double bytes = 0.0;
    for (const auto& one : calls) {
      if (has_rows(one, calls)) bytes += static_cast<double>(one.call.bytes);
    }
    return bytes;
  }
  bool combines_again() const {
    return std::ranges::none_of(dry_.experts_f, [&](const auto& one) {
      return has_rows(one, dry_.experts_f) && one.call.is_dear;
    });
  }

  /// As `Experts` has them: rows of a rank for as many experts as it computes.
  Products products() const {
    const ExpertsSpec& experts = *job_.spec.experts;
    const double element = job_.stack.element_bytes(),
                 hidden = static_cast<double>(job_.spec.hidden),
                 width = static_cast<double>(experts.width) / std::max(1, plan_.r);
    double bytes = 0.0;
    for (const auto& one : dry_.experts_f) {
      if (has_rows(one, dry_.experts_f)) bytes += payload(one.call);
    }
    const double groups = static_cast<double>(experts.count) / candidate_.ep * dry_.kinds;
    const double rows = bytes / 2.0 / (hidden * element) * plan_.r / groups;
    if (rows == 0.0) return {};
    const auto product = [&](double out, double in) {
      return groups * gemm_seconds(machine_.device, machine_.device.matrix_rate(job_.stack.compute),
                                   element, {rows, out, in, 1.0, in});
    };
    return {product(2.0 * width, hidden), product(hidden, width)};
  }

  double row_exchange(double bytes) const {
    if (bytes == 0.0) return 0.0;
    if (plan_.node > 1) {
      const int nodes = candidate_.ep / plan_.node;
      return two_level_exchange_seconds(
          exchange_network(machine_, nodes, plan_.node, candidate_.etp), bytes);
    }
    return collective(Axis::ep, CommOp::all_to_all, bytes);
  }
  /// An all-to-all between servers is no ring: each rank has its own bytes for every other.
  double collective(Axis axis, CommOp op, double bytes) const {
    const GroupShape& group = axis == Axis::ep ? ep_ : etp_;
    if (op != CommOp::all_to_all || group.servers() == 1) {
      return collective_seconds(machine_, op, group, bytes);
    }
    const int stride = axis == Axis::ep ? candidate_.etp : 1;
    return linear_exchange_seconds(
        exchange_network(machine_, group.servers(), group.per_server, stride), bytes);
  }

  /// Rows one way, of which pieces travel while others are multiplied. Two levels wait.
  double waited(double bytes, int pieces, double product) const {
    const double each = row_exchange(bytes / pieces), all = pieces * each;
    const double coding = coded_seconds(bytes);
    if (pieces == 1 || plan_.node > 1 || !candidate_.overlap) return all + coding;
    const double exposed = std::max(each, all - product * (pieces - 1) / pieces);
    return coding + exposed + contention_on(machine_, ep_) * (all - exposed);
  }
  double coded_seconds(double bytes) const {
    if (codec_ == nullptr || bytes == 0.0) return 0.0;
    double values = 0.0;
    for (const auto& one : dry_.experts_f) {
      if (has_rows(one, dry_.experts_f) && one.call.payload > 0) {
        values = payload(one.call) / job_.stack.element_bytes();
      }
    }
    return encode_seconds(machine_, codec_.get(), values) +
           decode_seconds(machine_, codec_.get(), values);
  }

  /// All that is no row over ep.
  double others(const ExpertCalls& calls, bool is_again) const {
    double seconds = 0.0;
    for (const auto& one : calls) {
      if (has_rows(one, calls) || (is_again && one.call.is_dear)) continue;
      seconds += collective(one.over, one.call.op, static_cast<double>(one.call.bytes));
    }
    return seconds;
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& candidate_;
  const DryBlocks& dry_;
  const ExchangePlan plan_;
  const GroupShape ep_, etp_;
  const std::shared_ptr<const codec::Codec> codec_;
};

}  // namespace

ExpertsCost experts_cost(const Machine& machine, const Job& job, const Candidate& candidate,
                         const DryBlocks& dry) {
  if (!candidate.divides_experts()) return {};
  return ExpertsModel(machine, job, candidate, dry).make();
}

ExchangeRequest fastest_exchange(const Machine& machine, const Job& job, Candidate candidate,
                                 const DryBlocks& dry) {
  const int etp = candidate.etp;
  const ExchangePlan plain{.r = candidate.ep_exchange.plan(etp).r};
  const auto cost_of = [&](const ExchangePlan& plan) {
    candidate.ep_exchange = ExchangeRequest(plan, etp);
    return experts_cost(machine, job, candidate, dry);
  };
  const auto seconds_of = [&](const ExchangePlan& plan) {
    const ExpertsCost cost = cost_of(plan);
    return cost.exposed_f + cost.exposed_b;
  };
  ExchangePlan best = plain;
  if (plain.r > 0 && candidate.ep > 1) {
    for (const int degree : kExpertsDegrees) {
      ExchangePlan tried = best;
      tried.degree_forward = degree;
      if (cost_of(tried).exposed_f < cost_of(best).exposed_f) best = tried;
      tried = best;
      tried.degree_backward = degree;
      if (cost_of(tried).exposed_b < cost_of(best).exposed_b) best = tried;
    }
    const GroupShape group = group_shape(machine, candidate.ep, etp);
    ExchangePlan two_levels = plain;
    two_levels.node = group.per_server;
    const bool are_nodes =
        group.per_server > 1 && group.servers() > 1 && candidate.ep % group.per_server == 0;
    if (are_nodes && seconds_of(two_levels) < seconds_of(best)) best = two_levels;
  }
  return ExchangeRequest(best, etp);
}

}  // namespace heddle::planner
