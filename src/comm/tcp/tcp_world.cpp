#include "comm/tcp/tcp_world.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/mpi/mpi_monitor.h"
#include "comm/tcp/tcp_backend.h"
#include "comm/tcp/tcp_links.h"
#include "comm/tcp/tcp_widen.h"

namespace heddle {

void run_tcp_rank(const TcpPlace& called, const std::function<void(World&)>& body,
                  WatchdogOptions watch,
                  const std::function<void(const std::vector<int>& ranks)>& met) {
  JoinedRanks joined = join_ranks(called, {.limit = watch.joining, .tell = watch.tell});
  if (met) met(joined.ranks);
  TcpPlace place = called;
  place.rank =
      static_cast<int>(std::ranges::find(joined.ranks, called.rank) - joined.ranks.begin());
  place.size = static_cast<int>(joined.ranks.size());
  const auto failure = std::make_shared<WorldFailure>();
  const auto flight = std::make_shared<FlightRecorder>(place.rank);
  const auto links =
      std::make_shared<TcpLinks>(place.rank, widen_links(place, std::move(joined)), failure);
  failure->watch(links);
  MpiMonitor monitor(
      place.rank, place.size, [&](std::string text) { return links->from_first(std::move(text)); },
      watch, failure, flight);
  const auto session =
      std::make_shared<TcpSession>(TcpSession{failure, links, [&](const std::string& reason) {
                                                monitor.stop_world(reason, ErrorCode::peer, reason);
                                              }});
  auto group = std::make_shared<Group>();
  group->ranks.resize(static_cast<std::size_t>(place.size));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  try {
    World world(std::make_unique<Communicator>(
        std::make_shared<TcpBackend>(place.rank, std::move(group), session), flight, "world"));
    body(world);
    world.all().barrier();  // nobody closes connections that another still uses
    flight->set_finished();
    monitor.say_ended();
  } catch (const AgreedError&) {
    flight->set_finished();
    monitor.say_ended();
    throw;
  } catch (...) {
    monitor.fail_rank(std::current_exception());
  }
}

}  // namespace heddle
