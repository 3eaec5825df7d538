// Plays transfers with SimGrid's raw flow model and prints when each ends. Reads, separated by
// white space: the number of links, and bandwidth and latency of each; the number of transfers, and
// for each its earliest begin, the number of its pieces, each as bytes, number of links and links,
// then the number of transfers that it waits for, and those.

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

namespace {

using Route = std::vector<std::size_t>;

struct Piece {
  double bytes = 0.0;
  Route route;
};

struct Transfer {
  double begin = 0.0, end = 0.0;
  std::vector<Piece> pieces;
  std::vector<std::size_t> after, before;
  sg::SemaphorePtr ready;
};

template <class T>
T next() {
  T value{};
  if (!(std::cin >> value)) throw std::runtime_error("the input ends too early");
  return value;
}

template <class Read>
auto list(Read read) {
  std::vector<decltype(read())> values(next<std::size_t>());
  for (auto& value : values) value = read();
  return values;
}

/// Every route has two hosts of its own, which do nothing else: SimGrid has one route per pair.
class Platform {
 public:
  explicit Platform(sg::NetZone* zone) : zone_(zone) {}

  void add_link(double bandwidth, double latency) {
    auto* link = zone_->create_link("link" + std::to_string(links_.size()), bandwidth);
    link->set_latency(latency);
    links_.push_back(link->seal());
  }

  void add_route(const Route& route) {
    if (ends_.contains(route)) return;
    const std::string name = std::to_string(ends_.size());
    auto* from = zone_->create_host("from" + name, 1.0)->seal();
    auto* to = zone_->create_host("to" + name, 1.0)->seal();
    std::vector<sg::LinkInRoute> links;
    for (const auto link : route) links.emplace_back(links_[link]);
    zone_->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, links, false);
    ends_[route] = {from, to};
  }

  sg::CommPtr send(const Piece& piece) const {
    const auto& [from, to] = ends_.at(piece.route);
    return sg::Comm::sendto_async(from, to, static_cast<std::uint64_t>(piece.bytes));
  }

 private:
  sg::NetZone* zone_;
  std::vector<sg::Link*> links_;
  std::map<Route, std::pair<sg::Host*, sg::Host*>> ends_;
};

Transfer read_transfer() {
  Transfer transfer;
  transfer.begin = next<double>();
  transfer.pieces = list([] {
    const double bytes = next<double>();
    return Piece{bytes, list(next<std::size_t>)};
  });
  transfer.after = list(next<std::size_t>);
  transfer.ready = sg::Semaphore::create(0);
  return transfer;
}

void play(const Platform& platform, std::vector<Transfer>& all, std::size_t index) {
  Transfer& transfer = all[index];
  for (std::size_t i = 0; i < transfer.after.size(); ++i) transfer.ready->acquire();
  sg::this_actor::sleep_until(transfer.begin);
  std::vector<sg::CommPtr> pieces;
  for (const auto& piece : transfer.pieces) pieces.push_back(platform.send(piece));
  for (const auto& piece : pieces) piece->wait();
  transfer.end = sg::Engine::get_clock();
  for (const auto later : transfer.before) all[later].ready->release();
}

}  // namespace

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  // Max-min sharing of what links have, and nothing of TCP. Lazy updates, the default, are wrong by
  // tens of percent for single flows of an all-to-all in 3.32, as exact arithmetic shows.
  for (const char* setting :
       {"network/model:CM02", "network/optim:Full", "network/TCP-gamma:1e30",
        "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0",
        "network/crosstraffic:0", "contexts/stack-size:64"}) {
    sg::Engine::set_config(setting);
  }
  auto* zone = sg::create_full_zone("network");
  Platform platform(zone);
  for (auto links = next<std::size_t>(); links > 0; --links) {
    const double bandwidth = next<double>();
    platform.add_link(bandwidth, next<double>());
  }
  auto transfers = list(read_transfer);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    for (const auto& piece : transfers[i].pieces) platform.add_route(piece.route);
    for (const auto earlier : transfers[i].after) transfers[earlier].before.push_back(i);
  }
  auto* desk = zone->create_host("desk", 1.0)->seal();
  zone->seal();
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    sg::Actor::create("transfer" + std::to_string(i), desk,
                      [&platform, &transfers, i] { play(platform, transfers, i); });
  }
  engine.run();
  for (const auto& transfer : transfers) std::printf("%.12g\n", transfer.end);
}
