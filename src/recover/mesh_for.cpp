#include "recover/mesh_for.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "parallel/schedule/routes.h"

namespace heddle::recover {
namespace {

bool are_equal(const FormerPlace& former, const MeshShape& mesh, int rank, AxisSet axes) {
  for (const Axis axis : {Axis::dp, Axis::cp, Axis::tp, Axis::pp}) {
    if (axes.contains(axis) && former.mesh.coord(axis, former.rank) != mesh.coord(axis, rank)) {
      return false;
    }
  }
  return true;
}

/// A pipeline of which some stages are left out perhaps.
struct SeatedStages {
  int count = 0;                  ///< of all
  std::vector<int> by_rank = {};  ///< of those that have a rank

  /// Whether the member had the stage of this rank of the pipeline.
  bool has(const FormerPlace& former, int rank) const {
    const Stages before = former.stages();
    const auto stage = static_cast<std::size_t>(by_rank[static_cast<std::size_t>(rank)]);
    return before.count() == count &&
           before.rank_of[stage] == former.mesh.coord(Axis::pp, former.rank);
  }
};
SeatedStages seated_stages(const Arrangement& made, const FormerStages& former) {
  SeatedStages stages{.count = made.keeps_stages ? former.count : made.request.pp};
  for (int stage = 0; stage < stages.count; ++stage) {
    const bool is_left_out = std::ranges::find(made.left_out, stage) != made.left_out.end();
    if (!made.keeps_stages || !is_left_out) stages.by_rank.push_back(stage);
  }
  return stages;
}

/// Whether what the member has is what the place needs.
bool has_state_for(const FormerPlace& former, const MeshShape& mesh, const SeatedStages& stages,
                   int zero, int rank) {
  if (former.mesh.size(Axis::tp) != mesh.size(Axis::tp)) return false;
  if (!are_equal(former, mesh, rank, {Axis::tp})) return false;
  if (!stages.has(former, mesh.coord(Axis::pp, rank))) return false;
  // Ranks that differ on dp, cp or tp then have other experts.
  const bool same_experts = former.mesh.size(Axis::ep) * former.mesh.size(Axis::etp) == 1 &&
                            mesh.size(Axis::ep) * mesh.size(Axis::etp) == 1;
  if (former.zero == 0 && zero == 0 && same_experts) return true;
  return former.mesh.size(kTokenAxes) == mesh.size(kTokenAxes) &&
         are_equal(former, mesh, rank, {Axis::dp, Axis::cp});
}

class Seating {
 public:
  Seating(const std::vector<std::optional<FormerPlace>>& members, const Arrangement& made,
          SeatedStages stages)
      : members_(members),
        stages_(std::move(stages)),
        sites_(made.sites),
        zero_(made.request.zero),
        mesh_(shape_of(made.request)),
        by_place_(static_cast<std::size_t>(mesh_.ranks()), -1),
        is_seated_(members.size(), false) {}

  std::vector<int> seat() {
    const auto has_state = [&](const FormerPlace& former, int place) {
      const auto site = static_cast<std::size_t>(mesh_.coord(Axis::site, place));
      return former.site() == sites_[site] && has_state_for(former, mesh_, stages_, zero_, place);
    };
    fill([&](const FormerPlace& former, int place) {
      return has_state(former, place) && are_equal(former, mesh_, place, {Axis::dp, Axis::cp});
    });
    fill(has_state);
    for (int& member : by_place_) {
      if (member < 0) member = take(first_unseated());
    }
    return by_place_;
  }
  std::vector<int> spares() const {
    std::vector<int> spares;
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (!is_seated_[member]) spares.push_back(static_cast<int>(member));
    }
    return spares;
  }

 private:
  template <class Fits>
  void fill(const Fits& fits) {
    for (std::size_t place = 0; place < by_place_.size(); ++place) {
      for (std::size_t member = 0; member < members_.size() && by_place_[place] < 0; ++member) {
        if (is_seated_[member] || !members_[member]) continue;
        if (fits(*members_[member], static_cast<int>(place))) by_place_[place] = take(member);
      }
    }
  }
  std::size_t first_unseated() const {
    return static_cast<std::size_t>(std::ranges::find(is_seated_, false) - is_seated_.begin());
  }
  int take(std::size_t member) {
    is_seated_[member] = true;
    return static_cast<int>(member);
  }

  const std::vector<std::optional<FormerPlace>>& members_;
  const SeatedStages stages_;
  const std::vector<int> sites_;
  const int zero_;
  const MeshShape mesh_;
  std::vector<int> by_place_;
  std::vector<bool> is_seated_;
};

/// A pipeline for fewer ranks than were asked for; one rank alone needs no schedule of several.
/// Routes that name ranks, or swap pairs that there are not, give way to all ranks in order.
ParallelRequest shortened(ParallelRequest request, int pp) {
  request.sites = request.dp = 1;
  request.pp = pp;
  if (request.routes != "swap" || !has_swapped_pairs(pp - 1)) request.routes.clear();
  if (pp > 1) return request;
  request.schedule = Pipeline::one_f_one_b;
  request.chunks = 1;
  if (request.divides_vocabulary_over_pp()) request.vocabulary = VocabularyPlacement::tensor;
  return request;
}

/// Experts are divided over as many ranks as were asked for, or over a part of that; nothing where
/// neither is allowed.
std::optional<ParallelRequest> with_experts(ParallelRequest request, const Refusal& refusal) {
  for (int ep = request.ep; ep > 0; --ep) {
    if (request.ep % ep != 0) continue;
    ParallelRequest fewer = request;
    fewer.ep = ep;
    if (!fewer.divides_experts()) {
      fewer.ep_rows = {};
      fewer.ep_exchange = {};
    }
    if (refusal(fewer).empty()) return fewer;
  }
  return std::nullopt;
}

ParallelRequest request_for(const ParallelRequest& asked, int members, std::int64_t microbatches,
                            const Refusal& refusal, Shares shares) {
  ParallelRequest request = asked;
  const int of_replica = asked.tp * asked.cp * asked.pp;
  const auto replicas =
      static_cast<int>(std::min<std::int64_t>(members / of_replica, microbatches));
  const auto are_even = [&] {
    return shares == Shares::any || microbatches % (request.sites * request.dp) == 0;
  };
  for (request.sites = std::min(asked.sites, replicas); request.sites > 0; --request.sites) {
    for (request.dp = replicas / request.sites; request.dp > 0; --request.dp) {
      if (!are_even()) continue;
      if (!asked.divides_experts()) return request;
      if (auto found = with_experts(request, refusal)) return *found;
    }
  }
  std::string why;
  for (int pp = members / (asked.tp * asked.cp); pp > 0; --pp) {
    request = shortened(asked, pp);
    why = refusal(request);
    if (const auto found = with_experts(request, refusal)) return *found;
  }
  throw Error(ErrorCode::usage,
              fmt::format("{} rank{} {} left, and the model cannot be divided over so few{}{}",
                          members, members == 1 ? "" : "s", members == 1 ? "is" : "are",
                          why.empty() ? fmt::format(": parallel.tp = {} times parallel.cp = {}",
                                                    asked.tp, asked.cp)
                                      : ": ",
                          why),
              "start the run again with enough ranks: it goes on from the newest checkpoint");
}

/// The numbers of so many: of the whole ones first.
std::vector<int> sites_of(int count, int asked, const std::vector<int>& whole) {
  std::vector<int> sites(static_cast<std::size_t>(asked));
  std::iota(sites.begin(), sites.end(), 0);
  std::ranges::stable_partition(sites,
                                [&](int site) { return std::ranges::binary_search(whole, site); });
  sites.resize(static_cast<std::size_t>(count));
  std::ranges::sort(sites);
  return sites;
}

}  // namespace

MeshShape shape_of(const ParallelRequest& request) {
  return MeshShape()
      .with(Axis::tp, request.tp)
      .with(Axis::cp, request.cp)
      .with(Axis::dp, request.dp)
      .with(Axis::pp, request.pp)
      .with(Axis::site, request.sites)
      .with(Axis::ep, request.ep)
      .with(Axis::etp, request.etp);
}

Arrangement mesh_for(const ParallelRequest& asked,
                     const std::vector<std::optional<FormerPlace>>& members,
                     std::int64_t microbatches, const Refusal& refusal, Shares shares,
                     const Former& former) {
  const FormerStages& stages = former.stages;
  Arrangement made{.request = request_for(asked, static_cast<int>(members.size()), microbatches,
                                          refusal, shares)};
  const int without_rank = stages.count - made.request.pp;
  const auto nobodys = static_cast<int>(stages.nobodys.size());
  if (made.request.pp < asked.pp && without_rank > 0 && nobodys > 0) {
    made.keeps_stages = without_rank <= nobodys;
    made.left_out.assign(stages.nobodys.end() - std::min(without_rank, nobodys),
                         stages.nobodys.end());
  }
  made.sites = sites_of(made.request.sites, asked.sites, former.whole_sites);
  Seating seating(members, made, seated_stages(made, stages));
  made.by_place = seating.seat();
  made.spares = seating.spares();
  return made;
}

}  // namespace heddle::recover
