#pragma once

#include <vector>

namespace heddle {

/// Something that a site sends to the others and takes from them, once in every window of steps.
struct SiteExchange {
  int turn = 0;            ///< step of the window in which it begins
  double begins_at = 0.0;  ///< seconds of computation into that step
  /// Steps later, and so far into that step, it is waited for: before it begins again.
  int steps_under_way = 0;
  double awaited_at = 0.0;
  int link = 0;               ///< that carries it, one exchange after another
  double link_seconds = 0.0;  ///< for which it has the link
  double latency = 0.0;       ///< by which it ends later than it has left the link
  double work_before = 0.0, work_behind = 0.0;  ///< of who computes: encoding, and what it leads to
};

/// A site's steps, which all sites make alike.
struct SiteCourse {
  double step_seconds = 1.0;  ///< of computation
  int window = 1;             ///< steps after which everything comes again
  std::vector<SiteExchange> exchanges = {};
};

/// What the steps become once they repeat themselves: means over a window.
struct PlayedSites {
  double step_seconds = 0.0;
  double waited_seconds = 0.0, work_seconds = 0.0;  ///< of these
  double utilisation = 0.0;                         ///< computing over all
};

PlayedSites play_sites(const SiteCourse& course);

}  // namespace heddle
