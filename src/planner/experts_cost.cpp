#include "planner/experts_cost.h"

#include <algorithm>
#include <cmath>

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
        codec_(job.compress.is_none() ? nullptr : job.compress.codec(Compression::Kind::experts)),
        rows_(rows_of()) {}

  ExpertsCost make() const {
    const double layers = std::max(1.0, rows_.layers);
    const double forward = exposed(Pass::forward), backward = exposed(Pass::backward),
                 again = exposed(combines_again() ? Pass::forward : Pass::forward_there);
    ExpertsCost cost{.exposed_f = layers * forward + others(dry_.experts_f, false),
                     .exposed_b = layers * backward + others(dry_.experts_b, false),
                     .again = layers * again + others(dry_.experts_f, true)};
    cost.exposed_f /= dry_.kinds;
    cost.exposed_b /= dry_.kinds;
    cost.again /= dry_.kinds;
    return cost;
  }

  ExpertsWindow window(bool with_weights) const {
    if (rows_.layers == 0.0) return {};
    const int degree = plan_.degree_backward;
    ExpertsSeconds chunk = chunk_of(Pass::backward, degree);
    // In the foreground they are made when rows are home, as where weights travel.
    const bool is_meanwhile = with_weights && plan_.r == candidate_.etp && is_in_background();
    const double behind = with_weights && !is_meanwhile ? chunk.weights : 0.0;
    const ExpertsPass pass = make_experts_pass({.degree = degree,
                                                .sends_gradients = true,
                                                .has_one_network = has_one_network(),
                                                .makes_weights = is_meanwhile});
    const std::vector<double> ends = end_times(pass, chunk);
    const auto gradients =
        std::ranges::find(pass, ExpertsTask::Kind::gradients, &ExpertsTask::kind) - pass.begin();
    const double alone = std::ranges::max(ends);
    // With a sum that is longer than everything, all else is what is before and behind it.
    chunk.gradients = 2.0 * alone;
    const double around = makespan(pass, chunk) - chunk.gradients;
    return {.begin = ends[static_cast<std::size_t>(gradients)],
            .idle = alone - around,
            .seconds = alone + behind};
  }

 private:
  /// The second one: what a second forward needs where nobody wants the outputs again.
  enum class Pass { forward, forward_there, backward };
  /// What travels one way for one layer.
  struct Rows {
    double layers = 0;           ///< of experts, in all kinds of blocks
    double plain = 0, wire = 0;  ///< bytes over ep, before and behind a codec
    double numbers = 0;          ///< over ep in backward beside them: one for each row
    int copies = 1;              ///< of each over etp
  };

  static double payload(const LayerCall& call) {
    return static_cast<double>(std::max(call.bytes, call.payload));
  }
  static bool is_exchange(const DryBlocks::ExpertCall& one, Axis over) {
    return one.over == over && one.call.op == CommOp::all_to_all;
  }
  /// Beside rows, numbers of rows travel.
  static bool has_rows(const DryBlocks::ExpertCall& one, Axis over, const ExpertCalls& calls) {
    if (!is_exchange(one, over)) return false;
    return std::ranges::all_of(calls, [&](const DryBlocks::ExpertCall& other) {
      return !is_exchange(other, over) || payload(other.call) <= 2.0 * payload(one.call);
    });
  }

  /// Over etp the same rows travel, r times; without ep they are known only there, if no weights
  /// travel with them.
  Rows rows_of() const {
    Rows rows{.copies = std::max(1, plan_.r)};
    if (plan_.r == 0 || (candidate_.ep == 1 && plan_.r < candidate_.etp)) return rows;
    const Axis over = candidate_.ep > 1 ? Axis::ep : Axis::etp;
    const double shared = over == Axis::ep ? 1.0 : rows.copies;
    double calls = 0.0;
    for (const auto& one : dry_.experts_f) {
      if (!has_rows(one, over, dry_.experts_f)) continue;
      rows.plain += payload(one.call) / shared;
      rows.wire += static_cast<double>(one.call.bytes) / shared;
      ++calls;
    }
    if (calls == 0.0) return rows;
    rows.layers = calls / 2.0;
    rows.plain /= calls;
    rows.wire /= calls;
    for (const auto& one : dry_.experts_b) {
      if (!is_exchange(one, over) || has_rows(one, over, dry_.experts_b)) continue;
      if (over == Axis::ep || is_row_call(one, rows)) rows.numbers = payload(one.call) / shared;
    }
    return rows;
  }
  /// Whether the call is one of a pass over rows, in which it has its place.
  bool is_row_call(const DryBlocks::ExpertCall& one, const Rows& rows) const {
    if (rows.layers == 0.0 || one.call.op != CommOp::all_to_all) return false;
    if (one.over == Axis::ep || candidate_.ep == 1) return true;
    const auto is = [&](double bytes) {
      return std::abs(static_cast<double>(one.call.bytes) - rows.copies * bytes) < 0.5;
    };
    return is(rows.plain) || (rows.numbers > 0.0 && is(rows.numbers));
  }
  bool combines_again() const {
    return std::ranges::none_of(dry_.experts_f, [&](const auto& one) {
      return is_row_call(one, rows_) && one.call.is_dear;
    });
  }

  /// The products of one layer as `Experts` has them, in so many pieces: rows of a rank for as many
  /// experts as it computes.
  struct Products {
    double up = 0, down = 0;  ///< seconds of a piece in forward
    double inputs = 0;        ///< of a piece in backward
    double weights = 0;       ///< of all pieces
  };
  Products products(int degree) const {
    const ExpertsSpec& experts = *job_.spec.experts;
    const double element = job_.stack.element_bytes(),
                 hidden = static_cast<double>(job_.spec.hidden),
                 width = static_cast<double>(experts.width) / rows_.copies;
    const double groups = static_cast<double>(experts.count) / candidate_.ep;
    const double rows = rows_.plain / (hidden * element) * rows_.copies / groups;
    if (rows == 0.0) return {};
    const auto product = [&](double m, double n, double k, double inputs) {
      return groups * gemm_seconds(machine_.device, machine_.device.matrix_rate(job_.stack.compute),
                                   element, {m, n, k, 1.0, inputs});
    };
    const double piece = rows / degree;
    return {.up = product(piece, 2.0 * width, hidden, hidden),
            .down = product(piece, hidden, width, width),
            .inputs =
                product(piece, hidden, 2.0 * width, hidden) + product(piece, width, hidden, width),
            .weights =
                product(hidden, 2.0 * width, rows, hidden) + product(width, hidden, rows, width)};
  }

  ExpertsSeconds chunk_of(Pass pass, int degree) const {
    const Products made = products(degree);
    const bool is_backward = pass == Pass::backward;
    const double numbers = is_backward ? rows_.numbers : 0.0;
    const double near = row_gather(rows_.plain / degree) + row_gather(numbers / degree);
    // Inputs go along, one way.
    const bool goes_again = is_backward && plan_.sends_again;
    return {.exchange = row_exchange(rows_.wire / degree) + row_exchange(numbers / degree),
            .gather = near + (goes_again ? row_gather(rows_.plain / degree) : 0.0),
            .expert = is_backward             ? made.inputs
                      : pass == Pass::forward ? made.up + made.down
                                              : made.up,
            .scatter = near,
            .weights = is_backward ? made.weights : 0.0,
            .inputs = goes_again ? row_exchange(rows_.wire / degree) : 0.0};
  }

  /// What a pass over one layer takes beside its products in one piece: by the list that PassWalk
  /// goes through, whose lanes wait for each other only as it says. In the foreground all follows
  /// one another.
  double exposed(Pass pass) const {
    if (rows_.layers == 0.0) return 0.0;
    const bool is_backward = pass == Pass::backward, comes_back = pass != Pass::forward_there;
    const int degree = is_backward ? plan_.degree_backward : plan_.degree_forward;
    const ExpertsSeconds chunk = chunk_of(pass, degree), whole = chunk_of(pass, 1);
    const double moved = degree * ((comes_back ? 2.0 : 1.0) * chunk.exchange + chunk.inputs +
                                   chunk.gather + (comes_back ? chunk.scatter : 0.0)),
                 computed = degree * chunk.expert + chunk.weights;
    const double of_block = whole.expert + whole.weights;
    const int coded_ways = (comes_back ? 2 : 1) + (is_backward && plan_.sends_again ? 1 : 0);
    const double coding = coded_ways * coded_seconds();
    if (!is_in_background()) return coding + moved + computed - of_block;
    // Where weights travel, their gradients are made behind the pass.
    const bool makes_weights = is_backward && plan_.r == candidate_.etp;
    const double took = makespan(make_experts_pass({.degree = degree,
                                                    .has_one_network = has_one_network(),
                                                    .comes_back = comes_back,
                                                    .makes_weights = makes_weights}),
                                 chunk) +
                        (makes_weights ? 0.0 : chunk.weights);
    const double hidden = std::max(0.0, moved + computed - took);
    return coding + took - of_block + contention_on(machine_, ep_) * hidden;
  }

  bool is_in_background() const {
    return candidate_.overlap && (plan_.degree_forward > 1 || plan_.degree_backward > 1);
  }
  bool has_one_network() const { return plan_.networks == 1 && candidate_.ep > 1; }

  double row_exchange(double bytes) const {
    if (bytes == 0.0 || candidate_.ep == 1) return 0.0;
    if (plan_.node > 1) {
      const int nodes = candidate_.ep / plan_.node;
      return two_level_exchange_seconds(
          exchange_network(machine_, nodes, plan_.node, candidate_.etp), bytes);
    }
    return collective(Axis::ep, CommOp::all_to_all, bytes);
  }
  /// Rows to the ranks that share an expert, or what they made of them back.
  double row_gather(double bytes) const {
    if (bytes == 0.0 || rows_.copies == 1) return 0.0;
    return collective(Axis::etp, CommOp::all_to_all, rows_.copies * bytes);
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

  /// Of rows one way.
  double coded_seconds() const {
    if (codec_ == nullptr || rows_.wire == rows_.plain) return 0.0;
    const double values = rows_.plain / job_.stack.element_bytes();
    return encode_seconds(machine_, codec_.get(), values) +
           decode_seconds(machine_, codec_.get(), values);
  }

  /// All that has no place in a pass over rows.
  double others(const ExpertCalls& calls, bool is_again) const {
    double seconds = 0.0;
    for (const auto& one : calls) {
      if (is_row_call(one, rows_) || (is_again && one.call.is_dear)) continue;
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
  const Rows rows_;
};

}  // namespace

ExpertsCost experts_cost(const Machine& machine, const Job& job, const Candidate& candidate,
                         const DryBlocks& dry) {
  if (!candidate.divides_experts()) return {};
  return ExpertsModel(machine, job, candidate, dry).make();
}

ExpertsWindow experts_window(const Machine& machine, const Job& job, const Candidate& candidate,
                             const DryBlocks& dry, bool with_weights) {
  if (!candidate.divides_experts()) return {};
  return ExpertsModel(machine, job, candidate, dry).window(with_weights);
}

ExchangeRequest with_fastest_degrees(const Machine& machine, const Job& job, Candidate candidate,
                                     const DryBlocks& dry) {
  const ExchangeRequest asked = candidate.ep_exchange.with_degrees(1, 1);
  if (!candidate.divides_experts() || asked.plan(candidate.etp).r == 0) return asked;
  ExchangeRequest best = asked;
  double least = 0.0;
  for (const int forward : kExpertsDegrees) {
    for (const int backward : kExpertsDegrees) {
      candidate.ep_exchange = asked.with_degrees(forward, backward);
      const ExpertsCost cost = experts_cost(machine, job, candidate, dry);
      const double seconds = cost.exposed_f + cost.exposed_b;
      if (candidate.ep_exchange != asked && seconds >= least) continue;
      best = candidate.ep_exchange;
      least = seconds;
    }
  }
  return best;
}

ExchangeRequest fastest_exchange(const Machine& machine, const Job& job, Candidate candidate,
                                 const DryBlocks& dry) {
  const int etp = candidate.etp;
  const auto fastest_on = [&](int node) {
    const ExchangePlan asked = candidate.ep_exchange.plan(etp);
    candidate.ep_exchange =
        ExchangeRequest({.r = asked.r, .node = node, .sends_again = asked.sends_again}, etp);
    return with_fastest_degrees(machine, job, candidate, dry);
  };
  const auto seconds_of = [&](const ExchangeRequest& exchange) {
    candidate.ep_exchange = exchange;
    const ExpertsCost cost = experts_cost(machine, job, candidate, dry);
    return cost.exposed_f + cost.exposed_b;
  };
  const ExchangeRequest plain = fastest_on(1);
  const GroupShape group = group_shape(machine, candidate.ep, etp);
  const bool are_nodes = plain.plan(etp).r > 0 && group.per_server > 1 && group.servers() > 1 &&
                         candidate.ep % group.per_server == 0;
  if (!are_nodes) return plain;
  const ExchangeRequest two_levels = fastest_on(group.per_server);
  return seconds_of(two_levels) < seconds_of(plain) ? two_levels : plain;
}

}  // namespace heddle::planner
