#include "simulator/play_routes.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <tuple>

#include "base/check.h"

namespace heddle {
namespace {

class RoutePlayer {
 public:
  using Visit = PlayedRoutes::Visit;
  using Kind = Visit::Kind;

  RoutePlayer(const std::vector<RouteSlot>& slots, const RouteTimes& times)
      : slots_(slots), times_(times), nodes_(times.forward.size()) {
    played_.peak.resize(nodes_.size());
  }

  PlayedRoutes run() {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      HEDDLE_CHECK(!slots_[slot].route.empty(), "slot {} without a route", slot);
      if (slots_[slot].microbatches > 0) arrive_at(slots_[slot].start, {static_cast<int>(slot)});
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.what) {
        case Event::What::arrival: node(event.place).waiting.push_back(event.place); break;
        case Event::What::end: end(event.place, event.time); break;
        case Event::What::free: break;
      }
      serve(node(event.place), event.time);
    }
    for (const Node& node : nodes_) played_.stuck += static_cast<int>(node.waiting.size());
    return std::move(played_);
  }

 private:
  /// A micro-batch on its way: at the `at`-th node of there and back.
  struct Place {
    int slot = 0, microbatch = 0;
    std::size_t at = 0;
  };
  struct Event {
    enum class What : std::uint8_t { arrival, end, free };
    double time = 0.0;
    std::uint64_t order = 0;
    What what = What::arrival;
    Place place = {};
    bool operator<(const Event& other) const {  // the earliest is on top
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };
  struct Node {
    std::deque<Place> waiting;
    double free_at = 0.0;
    int kept = 0;  ///< micro-batches between forward and backward
  };

  const Route& route(const Place& place) const {
    return slots_[static_cast<std::size_t>(place.slot)].route;
  }
  Kind kind(const Place& place) const {
    const std::size_t there = route(place).size();
    return place.at < there ? Kind::forward : place.at == there ? Kind::loss : Kind::backward;
  }
  /// There, to the first for the loss, and back.
  int node_number(const Place& place) const {
    const Route& nodes = route(place);
    if (place.at < nodes.size()) return nodes[place.at];
    return place.at == nodes.size() ? nodes[0] : nodes[2 * nodes.size() - place.at];
  }
  bool is_last(const Place& place) const { return place.at == 2 * route(place).size(); }
  Node& node(const Place& place) { return nodes_.at(static_cast<std::size_t>(node_number(place))); }

  void push(double time, Event::What what, const Place& place) {
    events_.push({time, ++order_, what, place});
  }
  void arrive_at(double time, const Place& place) { push(time, Event::What::arrival, place); }

  bool finds_room(const Node& node, const Place& place) const {
    return kind(place) != Kind::forward || place.at == 0 || node.kept < times_.memory;
  }

  void serve(Node& node, double now) {
    if (node.free_at > now) return;
    const auto next = std::ranges::find_if(
        node.waiting, [&](const Place& place) { return finds_room(node, place); });
    if (next == node.waiting.end()) return;
    const Place place = *next;
    node.waiting.erase(next);
    const int number = node_number(place);
    const Kind what = kind(place);
    if (what == Kind::forward) {
      int& peak = played_.peak[static_cast<std::size_t>(number)];
      peak = std::max(peak, ++node.kept);
    }
    const double share = what == Kind::forward ? 1.0
                         : what == Kind::loss  ? times_.loss
                                               : times_.backward;
    const double end = now + share * times_.forward[static_cast<std::size_t>(number)];
    played_.visits.push_back({what, number, place.slot, place.microbatch, now, end});
    node.free_at = end + times_.gap;
    push(end, Event::What::end, place);
    push(node.free_at, Event::What::free, place);
  }

  void end(Place place, double now) {
    if (kind(place) == Kind::backward) --node(place).kept;
    if (is_last(place)) {
      played_.seconds = std::max(played_.seconds, now);
      const int all = slots_[static_cast<std::size_t>(place.slot)].microbatches;
      if (++place.microbatch < all) arrive_at(now, {place.slot, place.microbatch});
      return;
    }
    const int from = node_number(place);
    ++place.at;
    const int to = node_number(place);
    arrive_at(from == to ? now : now + times_.hop(from, to), place);
  }

  const std::vector<RouteSlot>& slots_;
  const RouteTimes& times_;
  std::vector<Node> nodes_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  PlayedRoutes played_;
};

}  // namespace

PlayedRoutes play_routes(const std::vector<RouteSlot>& slots, const RouteTimes& times) {
  return RoutePlayer(slots, times).run();
}

}  // namespace heddle
