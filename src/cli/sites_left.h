#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/tcp/tcp_join.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle::cli {

/// The sites of a run that goes on when some are lost (docs/design/042-sites-apart.md).
struct SitesLeft {
  int ranks_each = 1;           ///< of a site, with neighbouring numbers
  std::vector<int> sites = {};  ///< that take part, by their numbers at the start
  std::string loss = {};        ///< which was lost last, and why; empty before
};

/// run_tcp_rank, and whenever whole sites are lost, once more: those that are left meet again at
/// rank 0's address, and `body` is called with a world of them, `left` being what it is then.
/// Throws as run_tcp_rank where something else fails, where the site of rank 0 is lost, and on
/// ranks of a lost site.
void run_with_sites_left(TcpPlace place, const std::function<void(World&)>& body,
                         WatchdogOptions watch, SitesLeft& left);

}  // namespace heddle::cli
