#include "planner/collectives.h"

#include <algorithm>
#include <cmath>

#include "comm/tcp/direct_sum.h"
#include "comm/tcp/long_way.h"

namespace heddle::planner {
namespace {

/// All-gather and reduce-scatter are half of an all-reduce.
double parts_of(CommOp op) { return op == CommOp::all_reduce ? 2.0 : 1.0; }

const CollectiveTable* table_for(const Machine& machine, CommOp op, int ranks) {
  const CollectiveTable* best = nullptr;
  for (const CollectiveTable& table : machine.collectives) {
    if (table.op != op || table.ranks < ranks) continue;
    if (best == nullptr || table.ranks < best->ranks) best = &table;
  }
  return best;
}

double interpolated(const CollectiveTable& table, double bytes) {
  const auto& points = table.points;
  if (bytes <= points.front()[0]) return points.front()[1];
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto& [low, low_s] = points[i - 1];
    const auto& [high, high_s] = points[i];
    if (bytes > high) continue;
    const double share = std::log(bytes / low) / std::log(high / low);
    return low_s * std::pow(high_s / low_s, share);
  }
  return points.back()[1] * bytes / points.back()[0];
}

const Link& tier_of(const Machine& machine, int reach) {
  for (const Link& link : machine.links) {
    if (link.reach == 0 || reach <= link.reach) return link;
  }
  return machine.links.back();
}

/// The latency of all steps of a ring: one step between servers for every server, the others
/// inside.
double ring_latency(const Machine& machine, const GroupShape& group, const Link& outer) {
  if (group.servers() == 1) return (group.ranks - 1) * machine.links.front().latency_s;
  return group.servers() *
         (outer.latency_s + (group.per_server - 1) * machine.links.front().latency_s);
}

/// What a rank sends of a tensor, and how often it waits for others on the way, where every rank
/// sends to every other at once.
struct DirectForm {
  double bytes = 0;
  int ways = 1;
};

/// Of what a rank sends in a call of a tensor of `bytes`, only what leaves the server counts.
DirectForm direct_form(CommOp op, const GroupShape& group, double bytes) {
  const double ranks = group.ranks;
  const double away = group.servers() == 1 ? ranks - 1 : ranks - group.per_server;
  if (op == CommOp::broadcast) return {away * bytes, 1};
  if (op != CommOp::all_reduce) return {away / ranks * bytes, 1};
  if (sums_in_one_way(group.ranks, bytes)) return {away * bytes, 1};
  return {2.0 * away / ranks * bytes, 2};
}

double ring_rate(const Machine& machine, const GroupShape& group, const Link& outer,
                 double fraction) {
  if (group.servers() == 1) return outer.bytes_per_s * fraction;
  const bool is_crowded = group.per_server > 1 && group.per_server < machine.server_size();
  return outer.bytes_per_s * group.per_server * fraction * (is_crowded ? outer.crowded : 1.0);
}

}  // namespace

const Link& outer_link(const Machine& machine, const GroupShape& group) {
  return group.servers() == 1 ? machine.links.front()
                              : tier_of(machine, group.servers() * machine.server_size());
}

GroupShape group_shape(const Machine& machine, int ranks, int stride) {
  const int fit = std::max(1, machine.server_size() / std::max(1, stride));
  return {ranks, std::min(ranks, fit)};
}

double direct_bytes_per_s(const Link& link, int ranks) {
  return link.bytes_per_s * (ranks == 2 ? link.message : link.collective);
}

double ring_wire_bytes(CommOp op, int ranks, double bytes) {
  if (is_point_to_point(op)) return bytes;
  return parts_of(op) * (ranks - 1) / ranks * bytes;
}

bool has_table(const Machine& machine, const GroupShape& group) {
  return group.servers() == 1 && table_for(machine, CommOp::all_gather, group.ranks) != nullptr;
}

double collective_seconds(const Machine& machine, CommOp op, const GroupShape& group,
                          double bytes) {
  if (group.ranks <= 1) return 0.0;
  if (group.servers() == 1) {
    if (const auto* table = table_for(machine, op, group.ranks)) return interpolated(*table, bytes);
    const auto* whole = table_for(machine, CommOp::all_reduce, group.ranks);
    if (whole != nullptr) return parts_of(op) / 2.0 * interpolated(*whole, bytes);
  }
  const Link& link = outer_link(machine, group);
  if (link.is_direct) {
    const DirectForm form = direct_form(op, group, bytes);
    return form.bytes / direct_bytes_per_s(link, group.ranks) + form.ways * link.latency_s;
  }
  return ring_wire_bytes(op, group.ranks, bytes) /
             ring_rate(machine, group, link, link.collective) +
         parts_of(op) * ring_latency(machine, group, link);
}

double latency_seconds(const Machine& machine, CommOp op, const GroupShape& group, double bytes) {
  if (group.ranks <= 1) return 0.0;
  const Link& link = outer_link(machine, group);
  const bool is_measured =
      group.servers() == 1 && (table_for(machine, op, group.ranks) != nullptr ||
                               table_for(machine, CommOp::all_reduce, group.ranks) != nullptr);
  if (is_measured || !link.is_direct) return collective_seconds(machine, op, group, 0.0);
  return direct_form(op, group, bytes).ways * link.latency_s;
}

double bytes_between_servers(const Machine& machine, CommOp op, const GroupShape& group,
                             double bytes) {
  if (group.ranks <= 1 || group.servers() == 1) return 0.0;
  if (outer_link(machine, group).is_direct) return direct_form(op, group, bytes).bytes;
  return ring_wire_bytes(op, group.ranks, bytes) / group.per_server;
}

double contention_on(const Machine& machine, const GroupShape& group) {
  // Of a byte: read and written on its way to the socket, through the system and back, twice.
  constexpr double kMoved = 8.0;
  const Link& link = outer_link(machine, group);
  const double share = kMoved * link.bytes_per_s / machine.device.memory_bytes_per_s;
  return machine.software.contention * (link.is_direct ? std::min(1.0, share) : 1.0);
}

int calls_at_once(const Machine& machine, const GroupShape& group) {
  const Link& link = outer_link(machine, group);
  return heddle::calls_at_once(link.is_direct && 2.0 * link.latency_s >= kLongRoundTrip);
}

double gather_seconds(const Machine& machine, const GroupShape& group, double bytes, double calls) {
  if (group.ranks <= 1) return 0.0;
  const Link& link = outer_link(machine, group);
  if (link.is_direct) {
    const DirectForm form = direct_form(CommOp::all_gather, group, bytes);
    return form.bytes / (direct_bytes_per_s(link, group.ranks) * link.gather) +
           calls * link.latency_s;
  }
  return ring_wire_bytes(CommOp::all_gather, group.ranks, bytes) /
             ring_rate(machine, group, link, link.collective * link.gather) +
         calls * ring_latency(machine, group, link);
}

double message_seconds(const Machine& machine, int stride, double bytes) {
  const Link& link = stride < machine.server_size() ? machine.links.front() : machine.links.back();
  return link.latency_s + bytes / (link.bytes_per_s * link.message);
}

}  // namespace heddle::planner
