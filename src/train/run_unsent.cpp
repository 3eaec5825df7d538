// What encodings have lost and not yet sent, from one epoch to the next.

#include <algorithm>
#include <span>

#include "train/residuals.h"
#include "train/run.h"

namespace heddle {

KeptErrors Run::own_errors() const {
  return {.epoch = static_cast<std::int64_t>(epochs_->epoch().number),
          .ranks = session_->mesh.shape().size(kTokenAxes)};
}

/// Whoever is left keeps its own where it computes; of those who do not, rank q's goes to q mod N.
std::vector<int> Run::ranks_taken(const KeptErrors& then) const {
  const auto place_among = [](const MeshShape& mesh, int rank) {
    const std::vector<int> group = mesh.group(kTokenAxes, rank);
    return static_cast<int>(std::ranges::find(group, rank) - group.begin());
  };
  const MeshShape& mesh = session_->mesh.shape();
  std::vector<int> takers;
  for (int rank = 0; rank < then.ranks; ++rank) takers.push_back(rank % mesh.size(kTokenAxes));
  const auto places = epochs_->meeting().places();
  const auto& by_place = epochs_->arrangement().by_place;
  std::vector<bool> is_found(takers.size(), false);
  for (std::size_t now = 0; now < by_place.size(); ++now) {
    const auto& place = places[static_cast<std::size_t>(by_place[now])];
    if (!place || place->mesh.size(kTokenAxes) != then.ranks) continue;
    const auto former = static_cast<std::size_t>(place_among(place->mesh, place->rank));
    if (is_found[former]) continue;
    is_found[former] = true;
    takers[former] = place_among(mesh, static_cast<int>(now));
  }
  std::vector<int> taken;
  const int own = place_among(mesh, session_->mesh.rank());
  for (int rank = 0; rank < then.ranks; ++rank) {
    if (takers[static_cast<std::size_t>(rank)] == own) taken.push_back(rank);
  }
  return taken;
}

std::string Run::take_unsent() {
  const auto then = epochs_->meeting().errors();
  if (!then || !keeps_unsent(config_)) return "";
  const bool is_spare = epochs_->is_spare();
  Stream own_stream(1, basis_.options.device);
  Stream& stream = is_spare ? own_stream : session_->stream;
  std::vector<int> taken;
  std::vector<recover::HeldBox> wanted;
  if (!is_spare) {
    taken = ranks_taken(*then);
    wanted = wanted_unsent(session_->model.store(), taken);
  }
  const auto kept = std::ranges::find(carried_.errors, then->epoch,
                                      [](const auto& errors) { return errors.of.epoch; });
  std::span<const recover::HeldBox> own;
  if (kept != carried_.errors.end()) own = kept->boxes;
  const recover::PeerSource source(epochs_->all(), own, wanted, stream,
                                   recover::PeerSource::Missing::is_zero);
  if (is_spare) return "";
  restore_unsent(source, session_->model.store(), taken, stream);
  const int ranks = session_->mesh.shape().size(kTokenAxes);
  if (ranks == then->ranks) return "";
  return ranks == 1
             ? "what encoding lost before is left behind: a single rank encodes nothing"
             : fmt::format("what encoding lost on {} ranks goes on on {}", then->ranks, ranks);
}

}  // namespace heddle
