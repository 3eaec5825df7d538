// An all-to-all in two levels (2DH) against a plain one, by size: where they cross, beside where
// the planner says so.
//
//     benchmarks/experts/shaped_nodes.sh 4 4 200 800 build/benchmarks/levels_bench 4 [ROUNDS]
//
// The first argument is the number of ranks of a node. First single levels are measured, each with
// few messages and with many of the same size: within a node to one neighbour and to all, between
// nodes to the ranks of the own place and to all. What a message, a byte and the call itself cost
// is fitted to these; no exchange in two levels is among them. The planner's crossover is that of a
// machine with such links. Then both ways are measured in turns, for messages of 256 bytes up to
// 16 KiB.

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>

#include "joined_rank.h"
#include "nn/experts/two_level.h"
#include "planner/two_level_exchange.h"

namespace heddle {
namespace {

constexpr std::int64_t kSmallest = 256, kLargest = 16 << 10;
/// Of single levels: about the sizes at which messages cost as much as their bytes.
constexpr std::int64_t kLargestFitted = 16 << 10;

/// Rows of a byte each between all ranks.
class Exchanges {
 public:
  Exchanges(World& world, int per_node) : world_(world), per_node_(per_node) {}

  int ranks() const { return world_.size(); }
  int nodes() const { return ranks() / per_node_; }

  /// So many bytes to each rank that `is_sent` (from, to) names; times of all ranks, the slowest.
  template <class Named>
  double plain(std::int64_t bytes, const Named& is_sent) {
    std::vector<std::int64_t> out, in;
    for (int peer = 0; peer < ranks(); ++peer) {
      out.push_back(is_sent(world_.rank(), peer) ? bytes : 0);
      in.push_back(is_sent(peer, world_.rank()) ? bytes : 0);
    }
    const Tensor sent = rows(out), received = rows(in);
    return seconds_of_call(
        [&] { world_.all().all_to_all(sent, received, out, in, stream_).wait(stream_); });
  }
  double two_levels(std::int64_t bytes) {
    const TwoLevel::Counts counts(
        static_cast<std::size_t>(ranks()),
        std::vector<std::int64_t>(static_cast<std::size_t>(ranks()), bytes));
    const Tensor sent = rows(counts.front());
    const MicroBatch none;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = none};
    return seconds_of_call([&] {
      TwoLevel(world_.all(), per_node_).exchange(sent, counts, 0, ctx).work.wait(stream_);
    });
  }

 private:
  /// Several, one behind the other. Ranks are on one machine and so have one clock: they begin at
  /// the same time, when what they agreed on it with has left the links.
  template <class Call>
  double seconds_of_call(const Call& call) {
    using Clock = std::chrono::steady_clock;
    constexpr int kCalls = 8;
    constexpr double kLater = 0.3;
    const auto now = [] {
      return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    };
    const double begin = world_.all().combine(now(), ReduceOp::max) + kLater;
    std::this_thread::sleep_until(Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(begin))));
    for (int i = 0; i < kCalls; ++i) call();
    return (world_.all().combine(now(), ReduceOp::max) - begin) / kCalls;
  }
  Tensor rows(const std::vector<std::int64_t>& counts) {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) sum += count;
    return memory_.zeros({sum, 1}, DType::u8, MemoryTag::communication);
  }

  World& world_;
  const int per_node_;
  Memory memory_;
  Stream stream_{1};
};

// ---- What the planner knows ---------------------------------------------------------------------

struct Sample {
  double messages = 0, bytes = 0;  ///< that a rank sends
  double seconds = 0;
};

/// seconds = call + messages * each + bytes * per_byte, with the least squares of relative errors.
struct Fit {
  double call = 0, each = 0, per_byte = 0, r2 = 0;
};

Fit fit(const std::vector<Sample>& samples) {
  constexpr std::size_t kUnknown = 3;
  std::array<std::array<double, kUnknown + 1>, kUnknown> system{};
  for (const auto& [messages, bytes, seconds] : samples) {
    const std::array<double, kUnknown + 1> row = {1.0 / seconds, messages / seconds,
                                                  bytes / seconds, 1.0};
    for (std::size_t i = 0; i < kUnknown; ++i) {
      for (std::size_t j = 0; j <= kUnknown; ++j) system[i][j] += row[i] * row[j];
    }
  }
  for (std::size_t i = 0; i < kUnknown; ++i) {
    for (std::size_t k = 0; k < kUnknown; ++k) {
      if (k == i) continue;
      const double times = system[k][i] / system[i][i];
      for (std::size_t j = i; j <= kUnknown; ++j) system[k][j] -= times * system[i][j];
    }
  }
  const auto unknown = [&](std::size_t i) { return system[i][kUnknown] / system[i][i]; };
  Fit found{.call = unknown(0), .each = unknown(1), .per_byte = unknown(2)};
  double mean = 0.0, all = 0.0, left = 0.0;
  for (const Sample& one : samples) mean += one.seconds / static_cast<double>(samples.size());
  for (const auto& [messages, bytes, seconds] : samples) {
    const double error = seconds - found.call - messages * found.each - bytes * found.per_byte;
    all += (seconds - mean) * (seconds - mean);
    left += error * error;
  }
  found.r2 = 1.0 - left / all;
  return found;
}

planner::Link link_of(const char* name, int reach, const Fit& fit) {
  return {.name = name,
          .reach = reach,
          .bytes_per_s = 1.0 / fit.per_byte,
          .latency_s = std::max(0.0, fit.call),
          .is_direct = true,
          .message_s = std::max(0.0, fit.each)};
}

/// What is measured of one size.
struct Size {
  std::int64_t bytes = 0;
  /// Single levels: to one neighbour and to all, to the ranks of the own place and to all others.
  std::vector<double> next = {}, neighbours = {}, same_place = {}, far = {};
  std::vector<double> plain = {}, two_levels = {};
};

void measure(Exchanges& exchanges, int per_node, Size& size) {
  const auto node = [&](int rank) { return rank / per_node; };
  const auto place = [&](int rank) { return rank % per_node; };
  const auto of = [&](const auto& is_sent) { return exchanges.plain(size.bytes, is_sent); };
  if (size.bytes <= kLargestFitted) {
    size.next.push_back(of([&](int from, int to) {
      return node(from) == node(to) && (place(from) ^ 1) == place(to);
    }));
    size.neighbours.push_back(
        of([&](int from, int to) { return node(from) == node(to) && from != to; }));
    size.same_place.push_back(
        of([&](int from, int to) { return node(from) != node(to) && place(from) == place(to); }));
    size.far.push_back(of([&](int from, int to) { return node(from) != node(to); }));
  }
  size.plain.push_back(of([](int, int) { return true; }));
  size.two_levels.push_back(exchanges.two_levels(size.bytes));
}

struct Levels {
  Fit within, between;
};

/// With few messages and with many, the same sizes.
Levels fit_levels(const std::vector<Size>& sizes, double nodes, double here) {
  std::vector<Sample> within, between;
  const auto add = [](std::vector<Sample>& to, double messages, const Size& size,
                      const std::vector<double>& runs) {
    to.push_back({messages, messages * static_cast<double>(size.bytes), quantile(runs, 0.5)});
  };
  for (const Size& size : sizes) {
    if (size.next.empty()) continue;
    add(within, 1.0, size, size.next);
    add(within, here - 1.0, size, size.neighbours);
    add(between, nodes - 1.0, size, size.same_place);
    add(between, (nodes - 1.0) * here, size, size.far);
  }
  return {.within = fit(within), .between = fit(between)};
}

// ---- The table ----------------------------------------------------------------------------------

void print_levels(const Levels& levels, const std::vector<Size>& sizes) {
  for (const auto& [name, of] :
       {std::pair{"within a node", levels.within}, {"between nodes", levels.between}}) {
    fmt::print("{}: {:.3f} ms, {:.4f} ms for each message, {:.1f} MB/s; r2 {:.4f}\n", name,
               1e3 * of.call, 1e3 * of.each, 1e-6 / of.per_byte, of.r2);
  }
  fmt::print(
      "\n| bytes of a message | to a neighbour, ms | to all of them | to the same place | to all "
      "in "
      "other nodes |\n|---|---|---|---|---|\n");
  for (const Size& size : sizes) {
    if (size.next.empty()) continue;
    fmt::print("| {} |", size.bytes);
    for (const auto* runs : {&size.next, &size.neighbours, &size.same_place, &size.far}) {
      fmt::print(" {:.3f} |", 1e3 * quantile(*runs, 0.5));
    }
    fmt::print("\n");
  }
}

/// Where the logarithm of a ratio is nought, of those on both sides by a line.
std::optional<double> crossover_of(const std::vector<Size>& sizes) {
  std::optional<double> crossover, before;
  for (const Size& size : sizes) {
    const double gain = std::log(quantile(size.plain, 0.5) / quantile(size.two_levels, 0.5));
    if (before && *before > 0.0 && gain <= 0.0) {
      crossover = static_cast<double>(size.bytes) / 2.0 * std::pow(2.0, *before / (*before - gain));
    }
    before = gain;
  }
  return crossover;
}

void print_ways(const planner::ExchangeNetwork& network, const std::vector<Size>& sizes) {
  fmt::print(
      "\n| bytes of a message | plain ms | predicted | two levels ms | predicted | plain over two "
      "levels | predicted |\n|---|---|---|---|---|---|---|\n");
  for (const Size& size : sizes) {
    const double whole = static_cast<double>(size.bytes) * network.ranks(),
                 plain = quantile(size.plain, 0.5), two = quantile(size.two_levels, 0.5),
                 plain_said = planner::linear_exchange_seconds(network, whole),
                 two_said = planner::two_level_exchange_seconds(network, whole);
    fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n", size.bytes,
               1e3 * plain, 1e3 * plain_said, 1e3 * two, 1e3 * two_said, plain / two,
               plain_said / two_said);
  }
  const std::optional<double> crossover = crossover_of(sizes);
  std::optional<double> predicted = planner::two_level_crossover(network);
  if (predicted) *predicted /= network.ranks();
  const auto text = [](const std::optional<double>& bytes) {
    return bytes ? fmt::format("{:.0f} bytes", *bytes) : "nowhere";
  };
  fmt::print("\nThey cross at messages of: measured {}, predicted {}", text(crossover),
             text(predicted));
  if (crossover && predicted) {
    fmt::print(": {:.2f} steps of the grid apart", std::abs(std::log2(*crossover / *predicted)));
  }
  fmt::print(".\n");
}

void run(World& world, int per_node, int rounds) {
  if (per_node < 4 || per_node % 2 != 0 || world.size() % per_node != 0 ||
      world.size() == per_node) {
    throw std::runtime_error("several nodes of 4, 6, ... ranks are needed");
  }
  Exchanges exchanges(world, per_node);
  std::vector<Size> sizes;
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) sizes.push_back({bytes});
  std::vector<Size> warm_up = sizes;
  for (Size& size : warm_up) measure(exchanges, per_node, size);
  for (int round = 0; round < rounds; ++round) {
    for (Size& size : sizes) measure(exchanges, per_node, size);
  }
  if (world.rank() != 0) return;
  const Levels levels = fit_levels(sizes, exchanges.nodes(), per_node);
  planner::Machine machine;
  machine.device.memory_bytes_per_s = 5e9;
  machine.links = {link_of("within", per_node, levels.within),
                   link_of("between", 0, levels.between)};
  print_levels(levels, sizes);
  print_ways(planner::exchange_network(machine, exchanges.nodes(), per_node), sizes);
}

}  // namespace
}  // namespace heddle

int main(int count, char** arguments) {
  const int per_node = count > 1 ? std::atoi(arguments[1]) : 4,
            rounds = count > 2 ? std::atoi(arguments[2]) : 15;
  heddle::run_joined_rank([&](heddle::World& world) { heddle::run(world, per_node, rounds); });
}
