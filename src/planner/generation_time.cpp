#include "planner/generation_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/rng.h"

namespace heddle::planner {
namespace {

// Of TCP over IPv4 with timestamps and an MTU of 1500, and of our messages (comm/tcp/tcp_links).
constexpr double kPacketContent = 1448, kPacketHeader = 52, kMessageHeader = 40;
/// Messages that are followed for one answer.
constexpr double kMostMessages = 4e6;
constexpr double kMostDraws = 64;

std::size_t nth(int index) { return static_cast<std::size_t>(index); }

/// A message as a link has it.
struct OnWire {
  double bytes = 0.0, packet = 0.0;  ///< of all packets, and of one
};
OnWire on_wire(double content) {
  if (content <= 0.0) return {};
  content += kMessageHeader;
  return {.bytes = content + std::ceil(content / kPacketContent) * kPacketHeader,
          .packet = std::min(content, kPacketContent) + kPacketHeader};
}

/// Ranks that make one call after the other.
class Ranks {
 public:
  Ranks(int count, const GenerationLinks& links)
      : count_(count), links_(links), now_(nth(count), 0.0), arriving_(nth(count)) {}

  /// Messages of content(from, to) bytes; where that is 0 there is none. They leave in the order in
  /// which the ranks follow the sender, as TcpBackend sends them.
  template <class Content>
  void call(const Content& content) {
    for (int from = 0; from < count_; ++from) {
      double left = now_[nth(from)];
      for (int ahead = 1; ahead < count_; ++ahead) {
        const int to = (from + ahead) % count_;
        const OnWire message = on_wire(content(from, to));
        if (message.bytes == 0.0) continue;
        const double first = left + seconds(message.packet) + links_.latency_s;
        left += seconds(message.bytes);
        arriving_[nth(to)].push_back({first, left + links_.latency_s, message});
      }
    }
    for (int to = 0; to < count_; ++to) receive(to);
  }

  double end() const { return std::ranges::max(now_); }

 private:
  /// When the first packet and the last have come as far as the receiver's link.
  struct Arriving {
    double first = 0.0, last = 0.0;
    OnWire message = {};
  };

  double seconds(double bytes) const { return bytes / links_.bytes_per_s; }

  void receive(int to) {
    std::vector<Arriving>& messages = arriving_[nth(to)];
    std::ranges::sort(messages, {}, &Arriving::first);
    double free = 0.0;
    for (const Arriving& one : messages) {
      free = std::max(std::max(free, one.first) + seconds(one.message.bytes),
                      one.last + seconds(one.message.packet));
    }
    now_[nth(to)] = std::max(now_[nth(to)], free);
    messages.clear();
  }

  const int count_;
  const GenerationLinks links_;
  std::vector<double> now_;  // by rank: when it makes the next call
  std::vector<std::vector<Arriving>> arriving_;
};

/// Rows from rank to rank.
class Moves {
 public:
  explicit Moves(int ranks) : ranks_(ranks), rows_(nth(ranks) * nth(ranks), 0.0) {}
  void add(int from, int to) {
    if (from != to && to >= 0) rows_[nth(from) * nth(ranks_) + nth(to)] += 1.0;
  }
  double operator()(int from, int to) const { return rows_[nth(from) * nth(ranks_) + nth(to)]; }

 private:
  int ranks_;
  std::vector<double> rows_;
};

std::vector<int> homes(std::size_t sequences, int ranks) {
  std::vector<int> rank_of(sequences);
  for (std::size_t s = 0; s < sequences; ++s) rank_of[s] = static_cast<int>(s % nth(ranks));
  return rank_of;
}

std::vector<double> counts_on(const std::vector<int>& rank_of, int ranks) {
  std::vector<double> counts(nth(ranks), 0.0);
  for (const int rank : rank_of) counts[nth(rank)] += 1.0;
  return counts;
}

double two_exchanges_seconds(const GenerationShape& shape, const RowRanks& rows,
                             const GenerationLinks& links) {
  Ranks ranks(shape.ranks, links);
  const std::vector<int> home = homes(rows.size(), shape.ranks);
  const double row_bytes = shape.hidden * shape.element_bytes;
  for (int layer = 0; layer < shape.layers; ++layer) {
    ranks.call([&](int, int) { return (shape.experts + 1) * kNumberBytes; });
    Moves moves(shape.ranks);
    for (std::size_t s = 0; s < rows.size(); ++s) {
      for (int choice = 0; choice < shape.choices; ++choice) {
        moves.add(home[s], rows[s][nth(layer * shape.choices + choice)]);
      }
    }
    ranks.call([&](int from, int to) { return row_bytes * moves(from, to); });
    ranks.call([&](int from, int to) { return row_bytes * moves(to, from); });
  }
  const std::vector<double> tokens = counts_on(home, shape.ranks);
  ranks.call([&](int from, int) { return kNumberBytes * tokens[nth(from)]; });
  return ranks.end();
}

double one_exchange_seconds(const GenerationShape& shape, const RowRanks& rows,
                            const GenerationLinks& links) {
  Ranks ranks(shape.ranks, links);
  std::vector<int> rank_of = homes(rows.size(), shape.ranks);
  const double row_bytes = shape.hidden * shape.element_bytes;
  // Attention of layers without experts is where the rows were left; how those lie between the
  // others is not known, so keys and values of all are counted as evenly spread over them.
  const double attentions = static_cast<double>(shape.attention_layers) / shape.layers;
  std::vector<double> stored(nth(shape.ranks), 0.0);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::vector<double> here = counts_on(rank_of, shape.ranks);
    for (int rank = 0; rank < shape.ranks; ++rank)
      stored[nth(rank)] += attentions * here[nth(rank)];
    ranks.call([&](int from, int) { return 2 * kNumberBytes * here[nth(from)]; });
    Moves moves(shape.ranks);
    for (std::size_t s = 0; s < rows.size(); ++s) {
      const int to = rows[s][nth(layer)];
      moves.add(rank_of[s], to);
      if (to >= 0) rank_of[s] = to;
    }
    ranks.call([&](int from, int to) { return row_bytes * moves(from, to); });
  }
  const std::vector<double> tokens = counts_on(rank_of, shape.ranks);
  ranks.call([&](int from, int) {
    return shape.key_values * shape.element_bytes * stored[nth(from)] +
           kNumberBytes * tokens[nth(from)];
  });
  return ranks.end();
}

}  // namespace

DrawRows rows_of_trace(const RoutingTrace& trace, const ExpertPlacement& placement, int sequences) {
  return [&trace, &placement, sequences](std::uint64_t index) {
    RowRanks rows(nth(sequences));
    for (std::size_t s = 0; s < rows.size(); ++s) {
      const auto token =
          static_cast<std::int64_t>(random_u64(rng_key(index, "tokens of a trace"), s) %
                                    static_cast<std::uint64_t>(trace.tokens()));
      const std::int32_t* taken = trace.taken.data() + token * trace.layers * trace.choices;
      for (int i = 0; i < trace.layers * trace.choices; ++i) {
        const auto& rank_of = placement.rank_of[nth(i / trace.choices)];
        rows[s].push_back(taken[i] < 0 ? -1 : rank_of[nth(taken[i])]);
      }
    }
    return rows;
  };
}

DrawRows rows_anywhere(int ranks, int layers, int sequences) {
  return [=](std::uint64_t index) {
    RowRanks rows(nth(sequences));
    for (std::size_t s = 0; s < rows.size(); ++s) {
      for (int layer = 0; layer < layers; ++layer) {
        const std::uint64_t drawn =
            random_u64(rng_key(index, "rows that go anywhere"), s * nth(layers) + nth(layer));
        rows[s].push_back(static_cast<int>(drawn % static_cast<std::uint64_t>(ranks)));
      }
    }
    return rows;
  };
}

GenerationTime generation_time(const GenerationShape& shape, const DrawRows& draw,
                               const GenerationLinks& links) {
  const double messages = 5.0 * shape.layers * shape.ranks * shape.ranks;
  const auto draws = static_cast<int>(std::clamp(kMostMessages / messages, 1.0, kMostDraws));
  GenerationTime mean;
  for (int i = 0; i < draws; ++i) {
    const RowRanks rows = draw(static_cast<std::uint64_t>(i));
    mean.two_exchanges += two_exchanges_seconds(shape, rows, links) / draws;
    if (shape.choices == 1) mean.one_exchange += one_exchange_seconds(shape, rows, links) / draws;
  }
  return mean;
}

}  // namespace heddle::planner
