#pragma once

#include <cstdint>
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
/// end. Ends within `tolerance` times the age of the first are taken together
/// (docs/design/013-network.md); with 0 each is an event.
class FlowNetwork {
 public:
  FlowNetwork(const Topology& topology, double tolerance);

  /// The piece takes capacity once its latency has passed after `time` (or now, if that is later).
  void begin(double time, Piece piece, std::size_t id);
  /// Goes on to the next ends, in their order; valid until the next call. Empty when nothing is
  /// under way.
  std::span<const Ended> advance();

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

  bool admit();
  void solve();
  void move_to(double time);
  void end_batch(double first_end);

  double tolerance_, now_ = 0.0;
  MaxMin max_min_;
  std::vector<Active> active_, waiting_;  ///< waiting_ is a heap: first to begin in front
  std::vector<Ended> ended_;
  bool is_changed_ = false;
  std::int64_t solves_ = 0;
};

}  // namespace heddle::network
