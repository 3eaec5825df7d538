#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/world.h"

namespace heddle {

/// The ranks that write one run folder together, and all ranks of the run: the same, or those of
/// one site where sites share no file system (docs/design/042-sites-apart.md).
class Keepers {
 public:
  /// All ranks have one folder.
  Keepers(World& world) : all_(&world) {}  // NOLINT: a world stands for its ranks
  /// Each site has its own. All ranks of `world` make theirs at the same time.
  static Keepers by_site(World& world, int site);

  World& all() const { return *all_; }
  World& here() const { return own_ ? *own_ : *all_; }
  bool are_apart() const { return own_ != nullptr; }
  /// Whether this rank does what one does for all of them: makes folders, speaks to the user.
  bool is_first() const { return here().rank() == 0; }

  /// Runs `decide` on the first rank of every folder while the others wait. An Error that one of
  /// them throws is thrown by all ranks, with its site where folders are several.
  void decide(const std::function<void()>& decide) const;

 private:
  World* all_;
  std::shared_ptr<World> own_;
  int site_ = 0;
};

}  // namespace heddle
