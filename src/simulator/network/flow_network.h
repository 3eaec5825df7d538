#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <span>
#include <vector>

#include "simulator/network/max_min.h"

namespace heddle::network {

struct Ended {
  std::size_t id = 0;
  double time = 0.0;
};

/// Pieces under way in a topology, at max-min fair rates that are solved again when pieces begin or
/// end that share a link with others. Ends within `tolerance` times the age of the first are taken
/// together (docs/design/013-network.md); with 0 each is an event.
class FlowNetwork {
 public:
  FlowNetwork(const Topology& topology, double tolerance);
  /// Capacities by link, all above 0.
  FlowNetwork(std::vector<double> capacities, double tolerance);

  /// The piece takes capacity once its latency has passed after `time` (or now, if that is later).
  void begin(double time, Piece piece, std::size_t id);
  /// Goes on to the next ends, in their order; valid until the next call. Empty when nothing ends
  /// until `limit`.
  std::span<const Ended> advance(double limit = std::numeric_limits<double>::infinity());

  double bytes_moved() const { return bytes_moved_; }
  std::int64_t solves() const { return solves_; }

 private:
  struct Active {
    Piece piece;  ///< bytes are those left
    std::size_t id = 0;
    double begin = 0.0, rate = 0.0, end = 0.0;
  };
  struct Later {
    bool operator()(const Active& a, const Active& b) const { return a.begin > b.begin; }
  };

  bool admit(double limit);
  void enter(Active one);
  void solve();
  void move_to(double time);
  void end_batch(double first_end);

  double tolerance_, now_ = 0.0;
  std::vector<double> capacities_;
  std::vector<int> users_;  ///< active pieces by link
  MaxMin max_min_;
  std::vector<Active> active_, waiting_;  ///< waiting_ is a heap: first to begin in front
  std::vector<Ended> ended_;
  bool is_changed_ = false;
  double bytes_moved_ = 0.0;
  std::int64_t solves_ = 0;
};

}  // namespace heddle::network
