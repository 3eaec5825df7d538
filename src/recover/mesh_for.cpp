#include "recover/mesh_for.h"

#include <fmt/format.h>

#include <algorithm>

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

/// Whether what the member has is what the place needs.
bool has_state_for(const FormerPlace& former, const MeshShape& mesh, int zero, int rank) {
  for (const Axis axis : {Axis::tp, Axis::pp}) {
    if (former.mesh.size(axis) != mesh.size(axis)) return false;
  }
  if (!are_equal(former, mesh, rank, {Axis::tp, Axis::pp})) return false;
  if (former.zero == 0 && zero == 0) return true;
  return former.mesh.size(kTokenAxes) == mesh.size(kTokenAxes) &&
         are_equal(former, mesh, rank, {Axis::dp, Axis::cp});
}

class Seating {
 public:
  Seating(const std::vector<std::optional<FormerPlace>>& members, const ParallelRequest& request)
      : members_(members),
        zero_(request.zero),
        mesh_(shape_of(request)),
        by_place_(static_cast<std::size_t>(mesh_.ranks()), -1),
        is_seated_(members.size(), false) {}

  std::vector<int> seat() {
    fill([&](const FormerPlace& former, int place) {
      return has_state_for(former, mesh_, zero_, place) &&
             are_equal(former, mesh_, place, {Axis::dp, Axis::cp});
    });
    fill([&](const FormerPlace& former, int place) {
      return has_state_for(former, mesh_, zero_, place);
    });
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
  const int zero_;
  const MeshShape mesh_;
  std::vector<int> by_place_;
  std::vector<bool> is_seated_;
};

/// A pipeline for fewer ranks than were asked for; one rank alone needs no schedule of several.
/// Routes that name ranks, or swap pairs that there are not, give way to all ranks in order.
ParallelRequest shortened(ParallelRequest request, int pp) {
  request.dp = 1;
  request.pp = pp;
  if (request.routes != "swap" || !has_swapped_pairs(pp - 1)) request.routes.clear();
  if (pp > 1) return request;
  request.schedule = Pipeline::one_f_one_b;
  request.chunks = 1;
  if (request.divides_vocabulary_over_pp()) request.vocabulary = VocabularyPlacement::tensor;
  return request;
}

ParallelRequest request_for(const ParallelRequest& asked, int members, std::int64_t microbatches,
                            const Refusal& refusal, Shares shares) {
  ParallelRequest request = asked;
  const int of_replica = asked.tp * asked.cp * asked.pp;
  request.dp = static_cast<int>(std::min<std::int64_t>(members / of_replica, microbatches));
  while (shares == Shares::even && request.dp > 1 && microbatches % request.dp != 0) --request.dp;
  if (request.dp > 0) return request;
  std::string why;
  for (int pp = members / (asked.tp * asked.cp); pp > 0; --pp) {
    request = shortened(asked, pp);
    why = refusal(request);
    if (why.empty()) return request;
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

}  // namespace

MeshShape shape_of(const ParallelRequest& request) {
  return MeshShape()
      .with(Axis::tp, request.tp)
      .with(Axis::cp, request.cp)
      .with(Axis::dp, request.dp)
      .with(Axis::pp, request.pp);
}

Arrangement mesh_for(const ParallelRequest& asked,
                     const std::vector<std::optional<FormerPlace>>& members,
                     std::int64_t microbatches, const Refusal& refusal, Shares shares) {
  const ParallelRequest request =
      request_for(asked, static_cast<int>(members.size()), microbatches, refusal, shares);
  Seating seating(members, request);
  std::vector<int> by_place = seating.seat();
  return {.request = request, .by_place = std::move(by_place), .spares = seating.spares()};
}

}  // namespace heddle::recover
