#pragma once

#include "planner/machine.h"

namespace heddle::planner {

/// Which devices make a collective together: `ranks` of them, and how many of them share a server.
struct GroupShape {
  int ranks = 1;
  int per_server = 1;

  int servers() const { return (ranks + per_server - 1) / per_server; }
};

/// The group of an axis whose neighbours are `stride` devices apart (tp 1, cp and the
/// ranks of cp and dp together tp, pp tp * cp * dp).
GroupShape group_shape(const Machine& machine, int ranks, int stride);

/// What carries messages between the members that are farthest from each other.
const Link& outer_link(const Machine& machine, const GroupShape& group);

/// What a rank sends in a second where the link is direct (Link::is_direct). Of two ranks each
/// sends messages to the other; of more, a rank's connections to all others share its link.
double direct_bytes_per_s(const Link& link, int ranks);

/// Bytes that each rank sends when the ring algorithm does `op` on a tensor of `bytes`.
double ring_wire_bytes(CommOp op, int ranks, double bytes);

/// Seconds of one collective on a tensor of `bytes`. Inside a server by the measured tables, where
/// there are some for this many ranks; otherwise by the slowest tier that the ring crosses:
/// bandwidth and the latency of every step. Servers whose devices are in several rings share the
/// adapters between them. Where the link is direct (Link::is_direct) by what each rank sends to all
/// others at once, and as many latencies as it waits for them.
double collective_seconds(const Machine& machine, CommOp op, const GroupShape& group, double bytes);
/// Of these, what no bandwidth would change: for a tensor of this size, since small sums of direct
/// links have another form than large ones.
double latency_seconds(const Machine& machine, CommOp op, const GroupShape& group, double bytes);
/// What each rank of the group sends to other servers. A ring goes through each server once, by the
/// adapters of all its ranks.
double bytes_between_servers(const Machine& machine, CommOp op, const GroupShape& group,
                             double bytes);
/// The same for the gathers of single parameters.
double gather_seconds(const Machine& machine, const GroupShape& group, double bytes, double calls);
/// What of a collective's time under computation is lost all the same (Software::contention). Over
/// a direct link the processors that compute also move the bytes, and are busy with that only as
/// long as their memory takes, not as long as a slow link does.
double contention_on(const Machine& machine, const GroupShape& group);
/// How many collectives of the group are under way at a time: several where its ranks are far from
/// each other.
int calls_at_once(const Machine& machine, const GroupShape& group);
/// Whether there are measured times for a group inside a server.
bool has_table(const Machine& machine, const GroupShape& group);

/// Seconds of one message between devices `stride` apart.
double message_seconds(const Machine& machine, int stride, double bytes);

}  // namespace heddle::planner
