#pragma once

#include <vector>

#include "comm/tcp/tcp_join.h"
#include "comm/tcp/tcp_links.h"

namespace heddle {

/// Adds connections to ranks that are far, where several carry more than one does, which is
/// measured: one connection that loses packets, or whose buffers are small, cannot fill a long
/// link. All ranks call this at the same time, after they have joined; ranks that are near take no
/// time. With TcpPlace::sockets every rank gets so many, as the system makes them, and nothing is
/// measured. Error(peer) when a rank goes away meanwhile.
std::vector<TcpLink> widen_links(const TcpPlace& place, JoinedRanks joined);

}  // namespace heddle
