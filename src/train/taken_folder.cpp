#include "train/taken_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "comm/agree.h"
#include "train/run_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Whether this rank sees the lock that the first of `world` holds.
bool sees_lock(World& world, const fs::path& folder, FolderLock& lock) {
  lock.text = text_of_first(world, lock.own ? lock.own->text() : "");
  if (!lock.text.empty()) lock.of_this_run.insert(lock.text);
  return lock_text(folder) == lock.text;
}

[[noreturn]] void refuse_unseen(int rank, int first, const fs::path& folder,
                                const MeshShape& mesh) {
  throw Error(
      ErrorCode::usage,
      fmt::format("rank {} does not see what rank {} has in the run folder {}", rank, first,
                  folder.string()),
      fmt::format("every rank writes its share of a checkpoint: give all of them{} the same run "
                  "folder, on a file system that they share",
                  mesh.size(Axis::site) > 1 ? ", or all of a site," : ""));
}

enum class Sees { all, none, some };

/// What the ranks of a site see of the folder of rank 0.
Sees seen_by(const std::vector<std::string>& by_rank, const MeshShape& mesh, int site) {
  const auto ranks = static_cast<std::ptrdiff_t>(mesh.size(kStepAxes));
  const auto begin = by_rank.begin() + site * ranks;
  const auto seeing = std::count(begin, begin + ranks, "yes");
  return seeing == ranks ? Sees::all : seeing == 0 ? Sees::none : Sees::some;
}

/// Whether every site has a folder of its own. `is_seen`: rank 0's, by this rank.
bool are_apart(World& world, const MeshShape& mesh, bool is_seen) {
  const auto by_rank = texts_of_all(world, is_seen ? "yes" : "");
  const int sites = mesh.size(Axis::site);
  int with_first = 0, without = 0;
  for (int site = 1; site < sites; ++site) {
    const Sees seen = seen_by(by_rank, mesh, site);
    if (seen != Sees::some) (seen == Sees::all ? with_first : without) = site;
    if (seen == Sees::some || (with_first > 0 && without > 0)) {
      throw_on_all(
          world,
          Error(ErrorCode::usage,
                seen == Sees::some
                    ? fmt::format("some ranks of site {} see the run folder of rank 0, others do "
                                  "not",
                                  site)
                    : fmt::format("site {} sees the run folder of rank 0, site {} does not",
                                  with_first, without),
                "give all sites one run folder on a file system that they share, or each site its "
                "own (run.dir)"));
    }
  }
  return without > 0;
}

}  // namespace

Keepers take_folder(World& world, const fs::path& folder, const MeshShape& mesh, bool all_write,
                    FolderLock& lock) {
  Keepers keepers = world;
  const auto take = [&] {
    // Another may have kept the folder while this one waited.
    if (lock.own && lock_text(folder) != lock.own->text()) lock.own.reset();
    if (!lock.own) lock.own = std::make_unique<RunLock>(folder, lock.of_this_run);
    lock.text = lock.own->text();
    check_run_folder(folder);
  };
  keepers.decide(take);
  bool is_seen = sees_lock(world, folder, lock);
  if (!all_write) return keepers;
  if (are_apart(world, mesh, is_seen)) {
    keepers = Keepers::by_site(world, mesh.coord(Axis::site, world.rank()));
    keepers.decide(take);
    is_seen = sees_lock(keepers.here(), folder, lock);
  }
  if (!is_seen) refuse_unseen(world.rank(), world.rank() - keepers.here().rank(), folder, mesh);
  return keepers;
}

}  // namespace heddle
