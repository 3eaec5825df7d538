#include "simulator/network/routing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace heddle::network {
namespace {

constexpr int kFar = std::numeric_limits<int>::max();
constexpr const char* kNames[] = {"ecmp", "split", "spray"};

/// Every way down the hop counts, in the order of links.
void collect_paths(const Topology& topology, const std::vector<int>& hops, int vertex,
                   std::vector<int>& path, std::vector<std::vector<int>>& paths) {
  const int left = hops[static_cast<std::size_t>(vertex)];
  if (left == 0) {
    paths.push_back(path);
    return;
  }
  for (const int link : topology.links_from(vertex)) {
    const int next = topology.links()[static_cast<std::size_t>(link)].to;
    if (hops[static_cast<std::size_t>(next)] != left - 1) continue;
    path.push_back(link);
    collect_paths(topology, hops, next, path, paths);
    path.pop_back();
  }
}

}  // namespace

std::vector<std::string> routing_names() { return {std::begin(kNames), std::end(kNames)}; }

Routing parse_routing(const std::string& name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    throw Error(ErrorCode::usage, fmt::format("there is no routing \"{}\"", name),
                fmt::format("give one of {}", fmt::join(kNames, ", ")));
  }
  return static_cast<Routing>(found - std::begin(kNames));
}

Router::Router(const Topology& topology, const RoutingOptions& options)
    : topology_(topology), options_(options) {
  if (options.ways < 1 || options.ways > 1024) {
    throw Error(ErrorCode::usage, fmt::format("a message cannot go {} ways", options.ways),
                "give 1 to 1024");
  }
}

int Router::leaf_of(int host) const {
  const auto& links = topology_.links_from(host);
  if (links.empty()) {
    throw Error(ErrorCode::peer,
                fmt::format("{} is not connected to anything", topology_.vertex_name(host)),
                "leave its cable in, or use fewer ranks");
  }
  return topology_.links()[static_cast<std::size_t>(links.front())].to;
}

const std::vector<int>& Router::hops_to(int leaf) {
  auto& hops = hops_[leaf];
  if (!hops.empty()) return hops;
  hops.assign(static_cast<std::size_t>(topology_.vertices()), kFar);
  hops[static_cast<std::size_t>(leaf)] = 0;
  std::vector<int> queue = {leaf};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const int next_hops = hops[static_cast<std::size_t>(queue[i])] + 1;
    for (const int link : topology_.links_from(queue[i])) {
      const int next = topology_.links()[static_cast<std::size_t>(link)].to;
      if (hops[static_cast<std::size_t>(next)] != kFar) continue;
      hops[static_cast<std::size_t>(next)] = next_hops;
      queue.push_back(next);
    }
  }
  return hops;
}

const Router::WaySet& Router::ways_between(int from_leaf, int to_leaf) {
  const auto [found, is_new] = way_sets_.try_emplace({from_leaf, to_leaf});
  WaySet& set = found->second;
  const auto& hops = hops_to(to_leaf);
  if (!is_new || hops[static_cast<std::size_t>(from_leaf)] == kFar) return set;
  std::vector<int> path;
  std::vector<std::vector<int>> paths;
  collect_paths(topology_, hops, from_leaf, path, paths);
  std::map<int, int> uses;
  for (const auto& links : paths) {
    Way& way = set.paths.emplace_back();
    for (const int link : links) {
      way.links.push_back({link, 1.0});
      way.latency_seconds +=
          topology_.links()[static_cast<std::size_t>(link)].speed.latency_seconds;
      ++uses[link];
    }
    set.spray.latency_seconds = std::max(set.spray.latency_seconds, way.latency_seconds);
  }
  for (const auto& [link, count] : uses) {
    set.spray.links.push_back({link, count / static_cast<double>(paths.size())});
  }
  return set;
}

const Router::WaySet& Router::ways_of(int source, int destination) {
  HEDDLE_CHECK(destination != source, "host {} sends to itself", source);
  const WaySet& set = ways_between(leaf_of(source), leaf_of(destination));
  if (set.paths.empty()) {
    throw Error(
        ErrorCode::peer,
        fmt::format("there is no path from {} at {} to {} at {}", topology_.vertex_name(source),
                    topology_.vertex_name(leaf_of(source)), topology_.vertex_name(destination),
                    topology_.vertex_name(leaf_of(destination))),
        "cut fewer cables");
  }
  return set;
}

Piece Router::piece(int source, const Outgoing& message, const Way& way) const {
  const int up = topology_.links_from(source).front();
  const int down = topology_.links_from(message.destination).front() ^ 1;  // the cable's other half
  Piece result{.bytes = message.bytes, .latency_seconds = way.latency_seconds};
  result.links.reserve(way.links.size() + 2);
  result.links.push_back({up, 1.0});
  result.links.insert(result.links.end(), way.links.begin(), way.links.end());
  result.links.push_back({down, 1.0});
  for (const int link : {up, down}) {
    result.latency_seconds +=
        topology_.links()[static_cast<std::size_t>(link)].speed.latency_seconds;
  }
  return result;
}

std::vector<Piece> Router::split(int source, std::span<const Outgoing> messages) {
  std::map<std::pair<int, double>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    groups[{leaf_of(messages[i].destination), messages[i].bytes}].push_back(i);
  }
  std::vector<Piece> pieces;
  for (const auto& [key, group] : groups) {
    const auto& paths = ways_of(source, messages[group.front()].destination).paths;
    const std::size_t left_over = group.size() % paths.size();
    const std::size_t parts = paths.size() / std::gcd(left_over, paths.size());
    std::size_t turn = random_u64(rng_key(options_.seed, source), key.first) % paths.size();
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::size_t count = i < group.size() - left_over ? 1 : parts;
      for (std::size_t part = 0; part < count; ++part, ++turn) {
        pieces.push_back(piece(source, messages[group[i]], paths[turn % paths.size()]));
        pieces.back().message = group[i];
        pieces.back().bytes /= static_cast<double>(count);
      }
    }
  }
  return pieces;
}

std::vector<Piece> Router::route(int source, std::span<const Outgoing> messages) {
  if (options_.routing == Routing::split) return split(source, messages);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const WaySet& set = ways_of(source, messages[i].destination);
    const bool is_sprayed = options_.routing == Routing::spray;
    const int count = is_sprayed ? 1 : options_.ways;
    const std::uint64_t key = rng_key(rng_key(options_.seed, source), messages[i].destination);
    for (int way = 0; way < count; ++way) {
      pieces.push_back(
          piece(source, messages[i],
                is_sprayed ? set.spray : set.paths[random_u64(key, way) % set.paths.size()]));
      pieces.back().message = i;
      pieces.back().bytes /= count;
    }
  }
  return pieces;
}

}  // namespace heddle::network
