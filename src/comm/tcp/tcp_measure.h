#pragma once

#include <chrono>
#include <optional>
#include <string>
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

/// What came of measuring. Both sides of a pair know the same.
struct MeasuredPair {
  struct Stage {
    int sockets = 0;
    double bytes_per_second = 0.0;  ///< both ways together
  };
  std::vector<Stage> stages = {};
  int chosen = 0;  ///< connections to use; 0: the first one alone is as good
};

/// How many connections are tried, one after another, and whether each can be told to ignore single
/// losses: then a few are enough.
std::vector<int> stages_to_try(bool has_wide_area_control);

/// Which stage is enough: more gain less than a tenth or so. Where connections slow down with every
/// loss, the next one: new connections are faster than they stay.
int choose_sockets(const std::vector<MeasuredPair::Stage>& stages, const std::vector<int>& tried,
                   bool has_wide_area_control);

/// Fills the connections of a pair both ways, more of them stage by stage, and says how many to
/// use. Both sides call it at the same time; `first` is the pair's own connection, over which they
/// agree. Afterwards all connections are empty. Nothing when the other side is gone.
std::optional<MeasuredPair> measure_pair(const Socket& first, const std::vector<Socket>& sockets,
                                         std::chrono::duration<double> round_trip,
                                         bool has_wide_area_control);

}  // namespace heddle
