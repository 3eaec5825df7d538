#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "model/blocks/branch_kind.h"
#include "planner/experts_cost.h"
#include "planner/kept_layouts.h"

namespace heddle::planner {
namespace {

/// A schedule on a number of pipeline ranks, with all that does not depend on the rest of a plan.
struct PipelineShape {
  Pipeline schedule;
  int chunks;
  VocabularyPlacement vocabulary;  ///< tensor: or replicated
  Split split;
};

struct Partial {
  Partial(int keep, std::size_t meshes) : best(keep), by_mesh(meshes), too_large(meshes) {}

  Fastest best;
  FastestByClass by_mesh, too_large;
  Front front;
  Cloud cloud;
  Found smallest;
  bool has_smallest = false;
  std::uint64_t evaluated = 0, fitting = 0;

  void add_smallest(const Found& found) {
    if (has_smallest && found.memory.total() >= smallest.memory.total()) return;
    smallest = found;
    has_smallest = true;
  }
};

std::vector<int> divisors(std::int64_t of, std::int64_t most) {
  std::vector<int> all;
  for (std::int64_t i = 1; i <= std::min(of, most); ++i) {
    if (of % i == 0) all.push_back(static_cast<int>(i));
  }
  return all;
}

/// Sequences from which on ranks share them also when that is not the only way.
constexpr std::int64_t kLongSequence = 16384;
/// Fewer tokens keep no device busy; and more ranks for one sequence wait for each other too often.
constexpr std::int64_t kLeastTokens = 1024, kMostContext = 64;

/// How experts are divided: over ranks of their own, or (1 and 1) as MLPs are.
struct ExpertRanks {
  int ep = 1, etp = 1;
};

/// All that the model allows on ranks of these devices; etp is kept within a server.
std::vector<ExpertRanks> expert_ranks(const Machine& machine, const Job& job, int gpus) {
  if (!job.spec.experts || job.stack.stores_scores) return {{}};
  const auto& [count, width] = std::pair(job.spec.experts->count, job.spec.experts->width);
  std::vector<ExpertRanks> all;
  for (const int ep : divisors(gpus, count)) {
    if (count % ep != 0) continue;
    for (const int etp : divisors(gpus / ep, machine.server_size())) {
      if (width % etp == 0) all.push_back({ep, etp});
    }
  }
  return all;
}

class Search {
 public:
  Search(const Machine& machine, const Job& job, const SearchOptions& options, bool divides)
      : machine_(machine),
        job_(job),
        options_(options),
        limit_(machine.device.memory_bytes * (1.0 - options.margin)) {
    experts_ = expert_ranks(machine, job, options.gpus);
    for (const int tp : divisors(options.gpus, job.spec.heads)) {
      const auto allows = [&](const ExpertRanks& ranks) {
        return refuse_tp(job.spec, {.tp = tp, .ep = ranks.ep, .etp = ranks.etp}).empty();
      };
      if (std::ranges::any_of(experts_, allows)) tps_.push_back(tp);
    }
    cps_ = divisors(options.gpus, divides ? most_context(job) : 1);
    pps_ = divisors(options.gpus, job.spec.layers);
    for (const int pp : pps_) shapes_.push_back(shapes_of(pp));
    add_parts();
  }

  SearchResult run() {
    const int threads = std::max(1, options_.threads);
    std::vector<Partial> partials;
    for (int i = 0; i < threads; ++i) partials.emplace_back(options_.keep, meshes());
    std::vector<std::exception_ptr> failures(partials.size());
    const auto guarded = [&](std::size_t i) {
      try {
        work(partials[i]);
      } catch (...) {
        failures[i] = std::current_exception();
        next_ = parts_.size();
      }
    };
    std::vector<std::thread> workers;
    for (std::size_t i = 1; i < partials.size(); ++i) workers.emplace_back(guarded, i);
    guarded(0);
    for (std::thread& worker : workers) worker.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    return joined(partials);
  }

 private:
  /// What one thread does at a time: everything with these.
  struct Part {
    std::size_t tp, cp;  ///< indices
    int sequences;
  };

  std::size_t meshes() const { return tps_.size() * cps_.size() * pps_.size(); }

  std::vector<PipelineShape> shapes_of(int pp) const {
    std::vector<PipelineShape> shapes;
    const auto add = [&](Pipeline schedule, int chunks,
                         VocabularyPlacement vocabulary = VocabularyPlacement::tensor) {
      if (vocabulary == VocabularyPlacement::pipeline && job_.spec.logits_cap > 0.0) return;
      shapes.push_back(
          {schedule, chunks, vocabulary, split_blocks(job_, schedule, pp, chunks, vocabulary)});
    };
    add(Pipeline::one_f_one_b, 1);
    if (pp == 1) return shapes;
    for (const Pipeline schedule : {Pipeline::gpipe, Pipeline::zb_h1, Pipeline::zb_h2}) {
      add(schedule, 1);
    }
    add(Pipeline::one_f_one_b, 1, VocabularyPlacement::pipeline);
    if (2 * pp > job_.spec.layers) return shapes;
    add(Pipeline::v_half, 1, VocabularyPlacement::pipeline);
    for (const Pipeline schedule : {Pipeline::zb_v, Pipeline::v_min, Pipeline::v_half}) {
      add(schedule, 1);
    }
    for (int chunks = 2; pp * chunks <= job_.spec.layers && chunks <= 16; ++chunks) {
      add(Pipeline::interleaved, chunks);
    }
    return shapes;
  }

  void add_parts() {
    for (std::size_t tp = 0; tp < tps_.size(); ++tp) {
      for (std::size_t cp = 0; cp < cps_.size(); ++cp) {
        if (options_.gpus % (std::int64_t{tps_[tp]} * cps_[cp]) != 0) continue;
        for (const int sequences : divisors(cps_[cp] == 1 ? job_.batch : 1, kMostSequences)) {
          parts_.push_back({tp, cp, sequences});
        }
      }
    }
  }

  void work(Partial& partial) {
    for (;;) {
      const std::size_t at = next_++;
      if (at >= parts_.size()) return;
      evaluate_part(parts_[at], partial);
      const std::uint64_t done = ++done_;
      if (options_.progress) options_.progress(done, parts_.size());
    }
  }

  void evaluate_part(const Part& part, Partial& partial) const {
    Candidate common{{.tp = tps_[part.tp], .cp = cps_[part.cp]}, Recompute::none, part.sequences};
    ContextCost context;
    if (common.cp > 1) {
      context = compare_methods(machine_, job_, common).front();
      common.context = context.method;
      common.context_heads = context.context_heads;
    }
    for (const bool sequence : {false, true}) {
      if (sequence && common.tp == 1) break;
      common.sequence = sequence;
      for (const auto& [ep, etp] : experts_) {
        common.ep = ep;
        common.etp = etp;
        if (!refuse_tp(job_.spec, common).empty() || !has_mesh(common)) continue;
        evaluate_experts(part, common, context, partial);
      }
    }
  }

  /// Whether the ranks of a stage can divide experts so, for some number of stages.
  bool has_mesh(const Candidate& common) const {
    return std::ranges::any_of(pps_, [&](int pp) { return divides_stage(common, pp); });
  }
  bool divides_stage(const Candidate& common, int pp) const {
    return options_.gpus % pp == 0 && options_.gpus / pp % (common.ep * common.etp) == 0;
  }

  /// Of the ways in which rows and weights meet, the fastest, and where rows travel also the one
  /// that keeps fewer of them.
  void evaluate_experts(const Part& part, Candidate common, const ContextCost& context,
                        Partial& partial) const {
    common.ep_exchange = {};
    BlockCost fastest = exchanged(common, context, {.r = common.etp});
    Candidate taken = common;
    if (common.divides_experts()) {
      taken.ep_exchange = fastest.exchange;
      std::vector<int> less = divisors(common.etp, common.etp - 1);
      less.push_back(0);
      for (const int r : less) {
        BlockCost tried = exchanged(common, context, {.r = r});
        if (tried.busy() >= fastest.busy()) continue;
        taken.ep_exchange = tried.exchange;
        fastest = std::move(tried);
      }
    }
    evaluate_meshes(part, taken, fastest, partial);
    const int r = taken.divides_experts() ? taken.ep_exchange.plan(common.etp).r : 0;
    if (r == 0) return;
    const BlockCost again = exchanged(common, context, {.r = r, .sends_again = true});
    taken.ep_exchange = again.exchange;
    evaluate_meshes(part, taken, again, partial);
  }

  BlockCost exchanged(Candidate common, const ContextCost& context,
                      const ExchangePlan& plan) const {
    if (!common.divides_experts()) {
      return block_cost(machine_, job_, common, context, dry_blocks(job_, common));
    }
    common.ep_exchange = ExchangeRequest(plan, common.etp);
    DryBlocks dry = dry_blocks(job_, common);
    common.ep_exchange = fastest_exchange(machine_, job_, common, dry);
    return block_cost(machine_, job_, common, context, std::move(dry));
  }

  void evaluate_meshes(const Part& part, const Candidate& common, const BlockCost& block,
                       Partial& partial) const {
    const Activations kept = activations(job_, common, block.dry);
    for (std::size_t i = 0; i < pps_.size(); ++i) {
      const int pp = pps_[i], ranks = common.tp * common.cp;
      if (options_.gpus % (ranks * pp) != 0 || !divides_stage(common, pp)) continue;
      const int dp = options_.gpus / ranks / pp;
      if (job_.batch % (static_cast<std::int64_t>(dp) * part.sequences) != 0) continue;
      const std::size_t mesh = (part.tp * cps_.size() + part.cp) * pps_.size() + i;
      for (const PipelineShape& shape : shapes_[i]) {
        Candidate candidate = common;
        candidate.dp = dp;
        candidate.pp = pp;
        candidate.schedule = shape.schedule;
        candidate.chunks = shape.chunks;
        candidate.vocabulary = shape.vocabulary;
        evaluate_options(candidate, shape.split, block, kept, mesh, partial);
      }
    }
  }

  /// The inner loop.
  void evaluate_options(Candidate& candidate, const Split& split, const BlockCost& block,
                        const Activations& kept, std::size_t mesh, Partial& partial) const {
    const bool may_replicate =
        candidate.tp > 1 && candidate.vocabulary == VocabularyPlacement::tensor;
    const int vocabularies = may_replicate ? 2 : 1;
    const int stages = job_.stack.sends_signs() ? 2 : 4;  // of ZeRO, with none
    const bool is_shared = candidate.token_ranks() > 1 ||
                           (candidate.divides_experts() && candidate.expert_token_ranks() > 1);
    const int zeros = is_shared ? stages : 1;
    for (int vocabulary = 0; vocabulary < vocabularies; ++vocabulary) {
      if (vocabulary == 1) candidate.vocabulary = VocabularyPlacement::replicated;
      for (candidate.zero = 0; candidate.zero < zeros; ++candidate.zero) {
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
          candidate.recompute = recompute;
          const Found found{candidate, estimate_time(machine_, job_, candidate, split, block),
                            estimate_memory(machine_, job_, candidate, split, kept)};
          ++partial.evaluated;
          partial.front.add(found);
          partial.cloud.add(found.memory.total(), found.time.total);
          if (found.memory.total() <= limit_) {
            ++partial.fitting;
            partial.best.add(found);
            partial.by_mesh.add(mesh, found);
          } else {
            partial.too_large.add(mesh, found);
            partial.add_smallest(found);
          }
        }
      }
    }
  }

  SearchResult joined(const std::vector<Partial>& partials) const {
    SearchResult result;
    Partial all(options_.keep, meshes());
    for (const Partial& partial : partials) {
      for (const Found& found : partial.best.unordered()) all.best.add(found);
      all.by_mesh.add(partial.by_mesh);
      all.too_large.add(partial.too_large);
      all.front.add(partial.front);
      all.cloud.add(partial.cloud);
      if (partial.has_smallest) all.add_smallest(partial.smallest);
      result.evaluated += partial.evaluated;
      result.fitting += partial.fitting;
    }
    result.best = all.best.unordered();
    std::sort(result.best.begin(), result.best.end(), is_faster);
    result.by_mesh = all.by_mesh.sorted();
    for (const Found& found : all.too_large.sorted()) {
      if (result.best.empty() || found.time.total < result.best.front().time.total) {
        result.too_large.push_back(found);
      }
    }
    result.smallest = all.smallest;
    result.front = all.front.sorted();
    result.cloud = all.cloud.points();
    result.limit_bytes = limit_;
    return result;
  }

  static constexpr std::int64_t kMostSequences = 64;

  const Machine& machine_;
  const Job& job_;
  const SearchOptions& options_;
  const double limit_;
  std::vector<int> tps_, cps_, pps_;
  std::vector<ExpertRanks> experts_;
  std::vector<std::vector<PipelineShape>> shapes_;  // by pp
  std::vector<Part> parts_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace

int most_context(const Job& job) {
  if (job.stack.stores_scores) return 1;  // of whole sequences
  return static_cast<int>(std::clamp<std::int64_t>(job.seq_len / kLeastTokens, 1, kMostContext));
}

SearchResult search(const Machine& machine, const Job& job, const SearchOptions& options) {
  const bool is_long = job.seq_len >= kLongSequence;
  SearchResult result = Search(machine, job, options, is_long).run();
  if (result.best.empty() && !is_long && most_context(job) > 1) {
    result = Search(machine, job, options, true).run();
  }
  if (result.evaluated > 0) return result;
  throw Error(ErrorCode::usage,
              fmt::format("no layout of {} GPUs divides a batch of {} sequences of {} tokens",
                          options.gpus, job.batch, job.seq_len),
              "choose a number of GPUs and --batch-tokens that have more factors in common");
}

}  // namespace heddle::planner
