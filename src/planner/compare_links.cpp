#include "planner/compare_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "codec/registry.h"
#include "planner/collectives.h"
#include "planner/step_units.h"

namespace heddle::planner {
namespace {

using Kind = Compression::Kind;

// ---- What is tried ------------------------------------------------------------------------------

/// Codecs worth a try, by kind of traffic. Gradients are summed and keep what they lose, so 8 bits
/// do; values that travel alone get 16, or 8 in blocks with a scale each. Signs are 1-bit Adam's.
struct Tried {
  Kind kind;
  const char* codec;
};
constexpr std::array kTried = {Tried{Kind::gradients, "bf16"},   Tried{Kind::gradients, "int8:128"},
                               Tried{Kind::gradients, "zfp:8"},  Tried{Kind::weights, "bf16"},
                               Tried{Kind::weights, "int8:128"}, Tried{Kind::weights, "zfp:16"},
                               Tried{Kind::weights, "lossless"}, Tried{Kind::tensor, "bf16"},
                               Tried{Kind::tensor, "int8:128"},  Tried{Kind::tensor, "zfp:16"},
                               Tried{Kind::pipeline, "bf16"},    Tried{Kind::pipeline, "int8:128"},
                               Tried{Kind::pipeline, "zfp:16"},  Tried{Kind::pipeline, "lossless"}};

/// How seldom sites meet (Streaming DiLoCo's two), the layers of a fragment, and the steps that an
/// exchange may travel: more than five gain nothing there.
constexpr std::array kEvery = {30, 100};
constexpr std::int64_t kLayersOfAFragment = 3;
constexpr int kMostDelay = 5;
constexpr const char* kSiteCodec = "e3m0";
/// What of a step sites may wait before the next longer delay is tried.
constexpr double kLittleWaiting = 0.01;
/// Of a run, steps before 1-bit Adam freezes: 15 to 25 % are usual.
constexpr double kWarmUp = 0.2;

// What a way costs, as a rank: each has to gain kWorth more than the best of lower ranks.
constexpr int kExact = 0, kRounded = 1, kSigned = 2, kApart = 3, kNotAdvised = 4;
constexpr double kWorth = 1.05;

constexpr std::size_t kMeshes = 12, kSimulated = 2;

Compression with(Compression compress, Kind kind, const std::string& codec) {
  switch (kind) {
    case Kind::gradients: compress.gradients = codec; break;
    case Kind::weights: compress.weights = codec; break;
    case Kind::tensor: compress.tensor = codec; break;
    case Kind::pipeline: compress.pipeline = codec; break;
    case Kind::experts: compress.experts = codec; break;
  }
  return compress;
}

/// Whether a layout has such traffic.
bool has(const Candidate& plan, Kind kind) {
  switch (kind) {
    case Kind::gradients: return plan.token_ranks() > 1;
    case Kind::weights: return plan.token_ranks() > 1 && plan.zero > 0;
    case Kind::tensor: return plan.tp > 1;
    case Kind::pipeline: return plan.pp > 1;
    case Kind::experts: break;  // layouts that are searched do not divide them
  }
  return false;
}

// ---- What is sent -------------------------------------------------------------------------------

/// Over the outermost tier, by the rank of the pipeline that sends most there.
class SentAway {
 public:
  SentAway(const Machine& machine, const Job& job, const Candidate& plan)
      : machine_(machine),
        plan_(plan),
        schedule_(step_schedule(plan, plan.microbatches(job))),
        units_(step_units(machine, job, plan, block_cost(machine, job, plan),
                          schedule_.rank_of_stage)) {
    policy_.reduces = !job.stack.sends_signs();
  }

  double bytes() const {
    double most = 0.0;
    for (int rank = 0; rank < plan_.pp; ++rank) most = std::max(most, of_rank(rank));
    return most;
  }

 private:
  double of_rank(int rank) const {
    const auto& own = units_.ranks[static_cast<std::size_t>(rank)];
    const MeshTraffic traffic =
        step_traffic(schedule_, rank, own.units, policy_, units_.mesh, units_.sizes);
    const int stage = plan_.tp * plan_.token_ranks();
    return of_group(traffic.on(Axis::tp), plan_.tp, 1) +
           of_group(traffic.on(Axis::cp), plan_.cp, plan_.tp) +
           of_group(traffic.on(Axis::dp), plan_.dp, plan_.tp * plan_.cp) +
           of_group(traffic.groups, plan_.token_ranks(), plan_.tp) +
           of_group(traffic.lanes, plan_.pp, stage) +
           of_group(traffic.ends, 2, stage * (plan_.pp - 1)) +
           of_messages(traffic.on(Axis::pp), rank, stage) +
           of_group(own.matrices.traffic, plan_.token_ranks(), plan_.tp);
  }

  double of_group(const CommCounts& counts, int ranks, int stride) const {
    const GroupShape group = group_shape(machine_, ranks, std::max(1, stride));
    if (ranks <= 1 || &outer_link(machine_, group) != &machine_.links.back()) return 0.0;
    double bytes = 0.0;
    for (std::size_t op = 0; op < kCommOps; ++op) {
      const auto& [calls, payload, wire] = counts.by_op[op];
      if (calls == 0 || is_point_to_point(static_cast<CommOp>(op))) continue;
      const auto times = static_cast<double>(calls);
      bytes += times * bytes_between_servers(machine_, static_cast<CommOp>(op), group,
                                             static_cast<double>(wire) / times);
    }
    return bytes;
  }

  /// All of a rank that has a neighbour on another server; sums of numbers over pp are small.
  double of_messages(const CommCounts& counts, int rank, int stage) const {
    const int inside = devices_inside(machine_);
    const auto is_away = [&](int other) {
      return other >= 0 && other < plan_.pp && other * stage / inside != rank * stage / inside;
    };
    if (!is_away(rank - 1) && !is_away(rank + 1)) return 0.0;
    return static_cast<double>(counts.by_op[static_cast<std::size_t>(CommOp::send)].wire_bytes);
  }

  const Machine& machine_;
  const Candidate& plan_;
  const Schedule schedule_;
  const StepUnits units_;
  StepPolicy policy_;
};

// ---- Comparing ----------------------------------------------------------------------------------

class Comparer {
 public:
  Comparer(const Machine& machine, const Job& job, const SearchOptions& options,
           const SearchResult& result, const Finalist& plain)
      : machine_(machine), job_(job), options_(options), limit_(result.limit_bytes) {
    for (const Found& found : result.by_mesh) {
      // Layouts without a pipeline may be the best once they send less.
      if (layouts_.size() < kMeshes || found.candidate.pp == 1) layouts_.push_back(found.candidate);
    }
    const Candidate& taken = plain.found.candidate;
    if (std::ranges::find(layouts_, static_cast<const ParallelRequest&>(taken),
                          [](const Candidate& one) -> const ParallelRequest& { return one; }) ==
        layouts_.end()) {
      layouts_.push_back(taken);
    }
    rows_.push_back({.what = "plain",
                     .job = job,
                     .plan = taken,
                     .seconds = plain.seconds,
                     .sent_bytes = SentAway(machine, job, taken).bytes(),
                     .accuracy = "exact"});
  }

  std::vector<LinkRow> run() {
    add_codecs();
    add_all_together();
    add_presets();
    if (job_.stack.updates == Updates::adamw) add_signs();
    add_sites();
    return std::move(rows_);
  }

 private:
  /// Fewer bytes than plain ones. Of lossless, which keeps values of 32 bits, only the most is
  /// known.
  bool shrinks(Kind kind, const codec::Codec& codec) const {
    constexpr std::int64_t kMany = 1 << 20;
    const double plain =
        kind == Kind::gradients ? job_.stack.sent_gradient_bytes() : job_.stack.parameter_bytes;
    return codec.is_lossless() ? plain == sizeof(float)
                               : static_cast<double>(codec.encoded_bytes(kMany)) / kMany < plain;
  }

  /// The fastest layout that fits and has traffic of all these kinds, played. None where none has.
  std::optional<Finalist> fastest(const Job& job, const std::vector<Kind>& kinds) const {
    std::vector<Found> found;
    for (const Candidate& layout : layouts_) {
      const BlockCost block = block_cost(machine_, job, layout);
      const Activations kept = activations(job, layout, block.dry);
      const Split split =
          split_blocks(job, layout.schedule, layout.pp, layout.chunks, layout.vocabulary);
      for (int zero = 0; zero < (layout.token_ranks() == 1 ? 1 : 4); ++zero) {
        if (zero > 1 && (job.stack.sends_signs() || zero != layout.zero)) continue;
        Candidate plan = layout;
        plan.zero = zero;
        if (!std::ranges::all_of(kinds, [&](Kind kind) { return has(plan, kind); })) continue;
        Found one{plan, estimate_time(machine_, job, plan, split, block),
                  estimate_memory(machine_, job, plan, split, kept)};
        if (one.memory.total() <= limit_) found.push_back(one);
      }
    }
    std::ranges::sort(found, {}, [](const Found& one) { return one.time.total; });
    std::optional<Finalist> best;
    for (std::size_t i = 0; i < std::min(kSimulated, found.size()); ++i) {
      const Finalist played = simulate_plan(machine_, job, found[i]);
      if (!best || played.seconds < best->seconds) best = played;
    }
    return best;
  }

  LinkRow& add(const std::string& what, const Job& job, const Finalist& best, int price,
               const std::string& accuracy) {
    const double gain = rows_.front().seconds / best.seconds;
    rows_.push_back({.what = what,
                     .job = job,
                     .plan = best.found.candidate,
                     .seconds = best.seconds,
                     .gain = gain,
                     .run_gain = gain,
                     .sent_bytes = SentAway(machine_, job, best.found.candidate).bytes(),
                     .accuracy = accuracy,
                     .price = price});
    return rows_.back();
  }

  Job compressed(const Compression& compress) const {
    Job job = job_;
    job.compress = compress;
    return job;
  }

  void add_codecs() {
    for (const auto& [kind, name] : kTried) {
      const auto codec = codec::make_codec(name);
      if (!shrinks(kind, *codec)) continue;
      const Job job = compressed(with(job_.compress, kind, name));
      const auto best = fastest(job, {kind});
      if (!best) continue;
      const bool is_exact = codec->is_lossless();
      const LinkRow& row =
          add(fmt::format("{} {}", name_of(kind), name), job, *best, is_exact ? kExact : kRounded,
              is_exact ? "exact; its size is at most this" : "approximate");
      auto& good = good_[static_cast<std::size_t>(kind)];
      if (row.gain > std::max(kWorth, good.gain)) good = {name, row.gain};
    }
  }

  void add_all_together() {
    Compression compress = job_.compress;
    std::vector<Kind> kinds;
    for (const Kind kind : kCompressionKinds) {
      const auto& [name, gain] = good_[static_cast<std::size_t>(kind)];
      if (name.empty()) continue;
      compress = with(compress, kind, name);
      kinds.push_back(kind);
    }
    if (kinds.size() < 2) return;
    const Job job = compressed(compress);
    if (const auto best = fastest(job, kinds)) {
      add(compress.text(), job, *best, kRounded, "approximate");
    }
  }

  void add_presets() {
    for (const std::string& name : compression_presets()) {
      const Job job = compressed({.preset = name});
      const bool is_naive = name == "naive";
      if (const auto best = fastest(job, {})) {
        add("preset " + name, job, *best, is_naive ? kNotAdvised : kRounded,
            is_naive ? "loses accuracy; for comparison" : "approximate");
      }
    }
  }

  void add_signs() {
    Job job = job_;
    job.stack = Stack::heddle(job_.stack.compute, Updates::onebit_adam);
    const auto best = fastest(job, {Kind::gradients});
    if (!best) return;
    LinkRow& row = add("onebit-adam", job, *best, kSigned,
                       "approximate; until it freezes, 15 to 25 % of a run, steps are plain");
    row.run_gain = 1.0 / (kWarmUp + (1.0 - kWarmUp) / row.gain);
  }

  // ---- Sites ------------------------------------------------------------------------------------

  void add_sites() {
    const int inside = devices_inside(machine_);
    if (options_.gpus <= inside || options_.gpus % inside != 0) return;
    const int sites = options_.gpus / inside;
    if (job_.batch % sites != 0) return;
    Job job = job_;
    job.batch /= sites;
    // Outer weights and their velocity lie as the optimizer's states do.
    job.stack.state_bytes += 8;
    job.stack.inner_state_bytes += 8;
    SearchOptions search_options = options_;
    search_options.gpus = inside;
    search_options.progress = {};
    SearchResult result;
    try {
      result = search(machine_, job, search_options);
    } catch (const Error&) {
      return;  // a site's share of the batch cannot be divided over its devices
    }
    if (result.best.empty()) return;
    const Finalist inner = choose_finalists(machine_, job, result, kFinalistsOfASite).front();
    for (const int every : kEvery) add_sites(job, inner, sites, every);
  }

  void add_sites(Job job, const Finalist& inner, int sites, int every) {
    Candidate plan = inner.found.candidate;
    plan.sites = sites;
    job.outer = {.every = every,
                 .fragments = static_cast<int>(
                     std::clamp<std::int64_t>(job.spec.layers / kLayersOfAFragment, 1, every)),
                 .mix = 0.5,
                 .codec = codec::make_codec(kSiteCodec)};
    SiteTimes times;
    for (int delay = 1; delay <= kMostDelay; ++delay) {
      job.outer.delay = delay;
      times = site_times(machine_, job, plan, inner.seconds);
      if (times.waited_seconds <= kLittleWaiting * times.inner_seconds) break;
    }
    const double gain = rows_.front().seconds / times.step_seconds;
    rows_.push_back({.what = fmt::format("{} sites, every {} in {} fragments, delay {}, {}", sites,
                                         every, job.outer.fragments, job.outer.delay, kSiteCodec),
                     .job = job,
                     .plan = plan,
                     .seconds = times.step_seconds,
                     .gain = gain,
                     .run_gain = gain,
                     .sent_bytes = times.sent_bytes,
                     .accuracy = "approximate; sites train apart between exchanges",
                     .price = kApart,
                     .sites = times});
  }

  static constexpr int kFinalistsOfASite = 4;

  struct Good {
    std::string codec;
    double gain = 0;
  };

  const Machine& machine_;
  const Job& job_;
  const SearchOptions& options_;
  const double limit_;
  std::vector<Candidate> layouts_;
  std::array<Good, Compression::kKinds> good_;
  std::vector<LinkRow> rows_;
};

/// The fastest run, where what costs more accuracy gains enough more.
std::size_t advised(const std::vector<LinkRow>& rows) {
  std::size_t best = 0;
  for (int price = kExact; price < kNotAdvised; ++price) {
    std::size_t fastest = best;
    for (std::size_t i = 1; i < rows.size(); ++i) {
      if (rows[i].price == price && rows[i].run_gain > rows[fastest].run_gain) fastest = i;
    }
    if (rows[fastest].run_gain >= kWorth * rows[best].run_gain) best = fastest;
  }
  return best;
}

std::string advice_of(const std::vector<LinkRow>& rows, std::size_t taken) {
  const LinkRow &plain = rows.front(), &best = rows[taken];
  if (taken > 0) {
    const std::string how = best.sites                          ? "train in " + best.what
                            : best.job.stack.sends_signs()      ? "train with " + best.what
                            : !best.job.compress.preset.empty() ? "compress by " + best.what
                                                                : "compress " + best.what;
    const std::string over_a_run =
        best.run_gain == best.gain ? "" : fmt::format(", {:.2f} times over a run", best.run_gain);
    return fmt::format(
        "{}: a step takes {:.3g} s in place of {:.3g} s ({:.2f} times as fast{}), and a rank sends "
        "{} to other servers in place of {}",
        how, best.seconds, plain.seconds, best.gain, over_a_run, format_bytes(best.sent_bytes),
        format_bytes(plain.sent_bytes));
  }
  std::string most;
  double gain = 0.0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].price == kNotAdvised || rows[i].run_gain <= gain) continue;
    gain = rows[i].run_gain;
    most = rows[i].what;
  }
  return most.empty() ? "nothing is worth compressing: ranks have nothing to send each other"
                      : fmt::format(
                            "nothing is worth compressing: what helps most, {}, makes a "
                            "run {:.2f} times as fast",
                            most, gain);
}

}  // namespace

LinkComparison compare_links(const Machine& machine, const Job& job, const SearchOptions& options,
                             const SearchResult& result, const Finalist& plain,
                             const GivenLinks& links) {
  LinkComparison comparison{.links = links, .rows = {}, .advice = {}};
  comparison.rows = Comparer(machine, job, options, result, plain).run();
  comparison.advised = advised(comparison.rows);
  comparison.advice = advice_of(comparison.rows, comparison.advised);
  return comparison;
}

}  // namespace heddle::planner
