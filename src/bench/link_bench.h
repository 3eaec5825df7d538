#pragma once

#include <cstdint>
#include <vector>

#include "comm/world.h"

namespace heddle {

struct LinkBenchOptions {
  std::int64_t bytes = std::int64_t{1} << 20;  ///< of a message
  double warm_up = 2.0;                        ///< seconds before time counts
  double seconds = 5.0;                        ///< that count
};

/// What came over a link, in bytes a second of content.
struct LinkRate {
  int from = 0, to = 0;
  double bytes_per_second = 0.0;
  double latency_seconds = 0.0;  ///< of a message of a few bytes, before the others begin
  std::int64_t messages = 0;     ///< that counted
};

/// Times a few short messages, then every rank sends messages to the next one, around, two of them
/// under way at any time, and receives those of the one before, all at once, in some bursts: rates
/// are of the median. The next one is `distance` ranks ahead. Every rank calls it and gets all
/// rates.
std::vector<LinkRate> bench_links(World& world, const LinkBenchOptions& options, int distance = 1);

/// Sums over all ranks, so much from each to each, over and over, in some bursts, as in a step:
/// bytes a second of content that a rank sends in all, of the slowest in the median of bursts.
/// Connections that share a rank's link carry less of it than one has alone. Every rank calls it
/// and gets the result.
double bench_exchange(World& world, const LinkBenchOptions& options);

}  // namespace heddle
