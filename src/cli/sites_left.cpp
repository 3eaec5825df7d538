#include "cli/sites_left.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_world.h"

namespace heddle::cli {
namespace {

std::string text_of(const std::vector<int>& sites) {
  return fmt::format("site{} {}", sites.size() == 1 ? "" : "s", fmt::join(sites, ", "));
}

/// Those who met are what is left.
void keep_met(SitesLeft& left, const std::vector<int>& ranks, const std::string& why) {
  std::vector<int> met, lost;
  for (std::size_t i = 0; i < left.sites.size(); ++i) {
    const int first = static_cast<int>(i) * left.ranks_each;
    (std::ranges::count(ranks, first) > 0 ? met : lost).push_back(left.sites[i]);
  }
  left.loss = lost.empty() ? fmt::format("all sites have met again after this: {}", why)
                           : fmt::format("{} {} lost: {}", text_of(lost),
                                         lost.size() == 1 ? "is" : "are", why);
  left.sites = std::move(met);
}

/// Throws on a rank for which a loss is the end. `place`: in the world that failed.
void require_left(const RanksLost& lost, const TcpPlace& place, const SitesLeft& left) {
  const auto loses = [&](int site) {
    return std::ranges::any_of(lost.ranks(),
                               [&](int rank) { return rank / left.ranks_each == site; });
  };
  const int own = place.rank / left.ranks_each;
  if (loses(0)) {
    const std::string text =
        fmt::format("site {} is lost, and with it rank 0, where all sites meet: {}",
                    left.sites.front(), lost.message());
    if (lost.teller() != place.rank) throw StoppedByPeer(ErrorCode::peer, text, lost.teller());
    throw Error(ErrorCode::peer, text,
                "start all ranks again: the run goes on from the newest checkpoint");
  }
  if (!loses(own)) return;
  throw Error(ErrorCode::peer,
              fmt::format("site {} is lost, the others go on without it: {}",
                          left.sites[static_cast<std::size_t>(own)], lost.message()),
              "when all ranks are started again, with --accept-changes, it takes part again");
}

}  // namespace

void run_with_sites_left(TcpPlace place, const std::function<void(World&)>& body,
                         WatchdogOptions watch, SitesLeft& left) {
  watch.tell_lost = [](const std::string& text) { log_line(LogLevel::warn, text); };
  std::string why;
  while (true) {
    TcpPlace next = place;
    next.listening = -1;
    const auto met = [&](const std::vector<int>& ranks) {
      next.rank = static_cast<int>(std::ranges::find(ranks, place.rank) - ranks.begin());
      next.size = static_cast<int>(ranks.size());
      if (place.again.number > 0) keep_met(left, ranks, why);
    };
    try {
      return run_tcp_rank(place, body, watch, met);
    } catch (const RanksLost& lost) {
      require_left(lost, next, left);
      why = lost.message();
      next.again = {
          .number = place.again.number + 1, .together = left.ranks_each, .lost = lost.ranks()};
    }
    place = std::move(next);
  }
}

}  // namespace heddle::cli
