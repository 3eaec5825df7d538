#include "comm/tcp/tcp_world.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/mpi/mpi_monitor.h"
#include "comm/tcp/tcp_backend.h"
#include "comm/tcp/tcp_links.h"
#include "comm/tcp/tcp_widen.h"

namespace heddle {

TcpWorld::TcpWorld(int rank, std::vector<TcpLink> connections, TcpCare care)
    : failure(std::make_shared<WorldFailure>()),
      flight(std::make_shared<FlightRecorder>(rank)),
      links(std::make_shared<TcpLinks>(rank, std::move(connections), failure, std::move(care))) {}

std::shared_ptr<CommBackend> TcpWorld::all(
    std::function<void(const std::string& reason)> stop_world) const {
  auto group = std::make_shared<Group>();
  group->ranks.resize(static_cast<std::size_t>(links->size()));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  return std::make_shared<TcpBackend>(
      links->rank(), std::move(group),
      std::make_shared<TcpSession>(TcpSession{failure, links, std::move(stop_world)}));
}

void run_tcp_rank(const TcpPlace& called, const std::function<void(World&)>& body,
                  WatchdogOptions watch,
                  const std::function<void(const std::vector<int>& ranks)>& met) {
  JoinedRanks joined = join_ranks(called, {.limit = watch.joining, .tell = watch.tell});
  if (met) met(joined.ranks);
  TcpPlace place = called;
  place.rank =
      static_cast<int>(std::ranges::find(joined.ranks, called.rank) - joined.ranks.begin());
  place.size = static_cast<int>(joined.ranks.size());
  const TcpWorld made(place.rank, widen_links(place, std::move(joined)));
  MpiMonitor monitor(
      place.rank, place.size,
      [&](std::string text) { return made.links->from_first(std::move(text)); }, watch,
      made.failure, made.flight);
  const auto stop_world = [&](const std::string& reason) {
    monitor.stop_world(reason, ErrorCode::peer, reason);
  };
  try {
    World world(std::make_unique<Communicator>(made.all(stop_world), made.flight, "world"));
    body(world);
    world.all().barrier();  // nobody closes connections that another still uses
    made.flight->set_finished();
    monitor.say_ended();
  } catch (const AgreedError&) {
    made.flight->set_finished();
    monitor.say_ended();
    throw;
  } catch (...) {
    monitor.fail_rank(std::current_exception());
  }
}

}  // namespace heddle
