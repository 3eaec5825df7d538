#include "planner/step_paths.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace heddle::planner {

StepPaths::StepPaths(const Machine& machine, const PlayedRanks& ranks, const StepOptions& options)
    : machine_(machine),
      ranks_(ranks),
      options_(options),
      tiers_(static_cast<int>(machine.links.size())),
      capacities_(static_cast<std::size_t>(ranks.count() * tiers_ * 2), 1.0) {
  const int devices = ranks.group_size() * ranks.pp * ranks.dp;
  if (options.topology != nullptr) {
    if (tiers_ == 1) {
      throw Error(ErrorCode::usage,
                  fmt::format("in {} nothing leaves a server, so no topology can be between them",
                              machine.name),
                  "give a machine file with a second [[link]], or no topology");
    }
    if (options.topology->hosts() < devices) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} has {} hosts for {} devices", options.topology->description(),
                              options.topology->hosts(), devices),
                  "a host is one device with its adapter: give more hosts");
    }
    router_.emplace(*options.topology, options.routing);
    first_topology_link_ = static_cast<int>(capacities_.size());
    for (const network::Link& one : options.topology->links()) {
      capacities_.push_back(one.speed.bytes_per_second);
    }
  }
  const int servers = server_of(devices - 1) + 1;
  const int measured = static_cast<int>(machine.pairs.size());
  if (measured > 0 && measured < servers) {
    throw Error(ErrorCode::usage,
                fmt::format("the machine file's [pairs] has {} servers, the plan needs {}",
                            measured, servers),
                "measure the servers that will be used, or remove [pairs]");
  }
}

int StepPaths::tier_between(int a, int b) const {
  int tier = 0;
  for (const Link& one : machine_.links) {
    if (one.reach == 0 || a / one.reach == b / one.reach) return tier;
    ++tier;
  }
  return tiers_ - 1;
}

int StepPaths::tier_of_group(const GroupShape& group) const {
  if (group.servers() == 1) return 0;
  const int reach = group.servers() * machine_.server_size();
  for (int tier = 0; tier < tiers_; ++tier) {
    const int whole = machine_.links[static_cast<std::size_t>(tier)].reach;
    if (whole == 0 || reach <= whole) return tier;
  }
  return tiers_ - 1;
}

int StepPaths::link(int rank, int tier, Direction direction) const {
  return (rank * tiers_ + tier) * 2 + direction;
}

std::optional<double> StepPaths::pair_rate(int device, int other) const {
  if (machine_.pairs.empty() || server_of(device) == server_of(other)) return std::nullopt;
  const auto place = [&](int at) {
    const auto server = static_cast<std::size_t>(server_of(at));
    return options_.servers.empty() ? server : static_cast<std::size_t>(options_.servers[server]);
  };
  return machine_.pairs[place(device)][place(other)];
}

int StepPaths::keep(StepProgram::Path path) {
  paths_.push_back(std::move(path));
  return static_cast<int>(paths_.size()) - 1;
}

/// Through the topology: what two devices' adapters carry.
void StepPaths::add_flow(StepProgram::Path& path, int source, int destination, double bytes) {
  const network::Outgoing message{destination, bytes};
  for (network::Piece& piece : router_->route(source, std::span(&message, 1))) {
    piece.latency_seconds = std::max(piece.latency_seconds, path.latency_seconds);
    for (auto& share : piece.links) share.link += first_topology_link_;
    path.pieces.push_back(std::move(piece));
  }
}

/// Around all servers, by the adapters of all devices that a server has in the group.
void StepPaths::add_ring(StepProgram::Path& path, std::vector<int> devices, double bytes) {
  std::sort(devices.begin(), devices.end());
  std::map<int, std::vector<int>> by_server;
  for (const int device : devices) by_server[server_of(device)].push_back(device);
  for (auto server = by_server.begin(); server != by_server.end(); ++server) {
    const auto after = std::next(server) == by_server.end() ? by_server.begin() : std::next(server);
    const std::size_t rings = std::min(server->second.size(), after->second.size());
    for (std::size_t i = 0; i < rings; ++i) {
      add_flow(path, server->second[i], after->second[i], bytes);
    }
  }
}

double StepPaths::slowest_pair(const std::vector<int>& devices) const {
  double slowest = 0.0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto rate = pair_rate(devices[i], devices[(i + 1) % devices.size()]);
    if (rate && (slowest == 0.0 || *rate < slowest)) slowest = *rate;
  }
  return slowest;
}

int StepPaths::message(int from, int to, double bytes, double extra_seconds) {
  const auto [known, is_new] = messages_.try_emplace({from, to, bytes, extra_seconds}, 0);
  if (!is_new) return known->second;
  const int source = ranks_.device(from), destination = ranks_.device(to);
  const int tier = tier_between(source, destination);
  const Link& used = machine_.links[static_cast<std::size_t>(tier)];
  const double rate = pair_rate(source, destination).value_or(used.bytes_per_s * used.message);
  StepProgram::Path path{.latency_seconds = used.latency_s + extra_seconds};
  if (is_through_topology(tier)) {
    for (int i = 0; i < ranks_.group_size(); ++i) {
      add_flow(path, source + i, destination + i, bytes * used.bytes_per_s / rate);
    }
  } else {
    path.pieces.push_back({.bytes = bytes / rate,
                           .latency_seconds = path.latency_seconds,
                           .links = {{link(from, tier, out)}, {link(to, tier, in)}}});
  }
  return known->second = keep(std::move(path));
}

int StepPaths::collective(const std::vector<int>& members, const GroupShape& group, CommOp op,
                          double bytes, Joins joins, double gathers) {
  const auto [known, is_new] = collectives_.try_emplace({members, group.ranks, op, bytes}, 0);
  if (!is_new) return known->second;
  const int tier = tier_of_group(group);
  const Link& used = machine_.links[static_cast<std::size_t>(tier)];
  const auto alone = [&](double size) {
    return gathers > 0.0 ? gather_seconds(machine_, group, size, gathers)
                         : collective_seconds(machine_, op, group, size);
  };
  StepProgram::Path path{
      .latency_seconds = gathers > 0.0 ? alone(0.0) : latency_seconds(machine_, op, group, bytes)};
  double seconds = alone(bytes) - path.latency_seconds;
  std::vector<int> devices;
  const int joined = joins == Joins::context ? ranks_.cp : 1;
  for (const int rank : members) {
    for (int i = 0; i < joined; ++i) devices.push_back(ranks_.device(rank) + i * ranks_.tp);
  }
  if (const double pair = slowest_pair(devices); pair > 0.0) {
    seconds *= used.bytes_per_s * used.collective / pair;
  }
  if (is_through_topology(tier)) {
    for (int i = 0; i < ranks_.group_size() / joined; ++i) {
      add_ring(path, devices, seconds * used.bytes_per_s);
      for (int& device : devices) ++device;
    }
  } else {
    network::Piece piece{.bytes = seconds, .latency_seconds = path.latency_seconds};
    for (const int rank : members) {
      piece.links.push_back({link(rank, tier, out)});
      piece.links.push_back({link(rank, tier, in)});
    }
    path.pieces.push_back(std::move(piece));
  }
  return known->second = keep(std::move(path));
}

}  // namespace heddle::planner
