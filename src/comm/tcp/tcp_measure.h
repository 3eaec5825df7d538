#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "comm/tcp/tcp_socket.h"

namespace heddle {

/// The shortest time that something took to the other side of a connection and back.
std::chrono::duration<double> round_trip(const Socket& socket);

/// Lets a connection send at a rate that does not fall when single packets are lost, where this
/// system allows that (bbr): false where it does not.
bool use_wide_area_control(const Socket& socket);
/// Whether it does.
bool has_wide_area_control();

/// What so many connections of a pair carried. Both sides know the same.
struct MeasuredStage {
  int sockets = 0;
  double bytes_per_second = 0.0;  ///< both ways together
};

/// How many connections are tried, one after another, and whether each can be told to ignore single
/// losses: then a few are enough.
std::vector<int> stages_to_try(bool has_wide_area_control);

/// What pairs carried together, stage by stage. One that stopped before the last stage would have
/// gone on as it was.
struct AroundPair {
  static constexpr std::size_t kMostStages = 4;
  std::array<double, kMostStages> bytes_per_second = {};

  void add(const std::vector<MeasuredStage>& pair);
};

/// How many connections of a pair to use; 0: its first one alone is as good. Which stage is enough:
/// more gain less than a tenth or so. `around` are all pairs of the two ranks, this one twice. They
/// share links and measure at the same time, so that one gains what another loses: where all
/// together gain nothing, only a pair that has twice as much takes more connections, because it
/// would have more of the link than others, who then wait. Where connections slow down with every
/// loss, the next stage: new connections are faster than they stay.
int choose_sockets(const std::vector<MeasuredStage>& pair, const AroundPair& around,
                   bool has_wide_area_control);

/// Fills the connections of a pair both ways, more of them stage by stage. Both sides call it at
/// the same time; `first` is the pair's own connection, over which they agree. Afterwards all
/// connections are empty. Nothing when the other side is gone.
std::optional<std::vector<MeasuredStage>> measure_pair(const Socket& first,
                                                       const std::vector<Socket>& sockets,
                                                       std::chrono::duration<double> round_trip,
                                                       bool has_wide_area_control);

}  // namespace heddle
