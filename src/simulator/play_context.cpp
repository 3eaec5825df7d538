#include "simulator/play_context.h"

#include <algorithm>

namespace heddle {
namespace {

using Span = std::pair<double, double>;

/// How much of `from` to `until` the spans cover together.
double covered(std::vector<Span> spans, double from, double until) {
  std::ranges::sort(spans);
  double sum = 0.0;
  for (const auto& [begin, end] : spans) {
    const double to = std::min(end, until);
    if (to <= std::max(begin, from)) continue;
    sum += to - std::max(begin, from);
    from = to;
  }
  return sum;
}

class ContextPlayer {
 public:
  ContextPlayer(const ContextPlan& plan, const ContextPass& pass, const ContextTimes& times,
                double factor)
      : shape_(plan.shape),
        pass_(pass),
        times_(times),
        head_pair_(times.pair * factor / plan.shape.heads),
        ranks_(pass.by_rank.size()),
        sending_until_(ranks_),
        receiving_until_(ranks_),
        free_(ranks_) {
    played_.by_rank.resize(ranks_);
  }

  PlayedContext play() {
    for (std::size_t round = 0; round < static_cast<std::size_t>(pass_.rounds()); ++round) {
      play_round(round);
    }
    for (const double end : free_) played_.makespan = std::max(played_.makespan, end);
    return std::move(played_);
  }

 private:
  const Round& round_of(std::size_t rank, std::size_t round) const {
    return pass_.by_rank[rank][round];
  }

  void play_round(std::size_t round) {
    std::vector<std::vector<Span>> moving(ranks_);  // by rank: its messages, both ways
    for (std::size_t rank = 0; rank < ranks_; ++rank) begin(rank, round);
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      most = std::max(most, round_of(rank, round).sends.size());
    }
    for (std::size_t turn = 0; turn < most; ++turn) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        const auto& sends = round_of(rank, round).sends;
        if (turn < sends.size()) send(rank, sends[turn], moving);
      }
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) end(rank, round, moving[rank]);
  }

  void begin(std::size_t rank, std::size_t round) {
    std::int64_t pairs = 0;
    const std::vector<Tile>& tiles = round_of(rank, round).tiles;
    for (const Tile& tile : tiles) pairs += head_pairs(tile);
    const double seconds =
        static_cast<double>(pairs) * head_pair_ + times_.kernel * static_cast<double>(tiles.size());
    played_.computing += seconds;
    const double slower = tiles.empty() ? 0.0 : times_.busy_byte * moved_bytes(rank, round);
    played_.by_rank[rank].push_back(
        {.begin = free_[rank], .computed = free_[rank] + seconds + slower});
  }

  double bytes_in(const Message& message) const {
    return static_cast<double>(bytes_of(traffic_of(message, shape_), times_.sizes));
  }

  double moved_bytes(std::size_t rank, std::size_t round) const {
    double bytes = 0.0;
    for (const Message& message : round_of(rank, round).sends) bytes += bytes_in(message);
    for (const Message& message : round_of(rank, round).receives) bytes += bytes_in(message);
    return bytes;
  }

  void send(std::size_t from, const Message& message, std::vector<std::vector<Span>>& moving) {
    const auto to = static_cast<std::size_t>(message.peer);
    PlayedMessage played{.peer = message.peer, .bytes = bytes_in(message)};
    played.begin = std::max({free_[from], free_[to], sending_until_[from], receiving_until_[to]});
    played.end = played.begin + times_.seconds(static_cast<int>(from), message.peer, played.bytes);
    sending_until_[from] = receiving_until_[to] = played.end;
    moving[from].emplace_back(played.begin, played.end);
    moving[to].emplace_back(played.begin, played.end);
    played_.by_rank[from].back().sends.push_back(played);
  }

  void end(std::size_t rank, std::size_t number, const std::vector<Span>& moving) {
    PlayedRound& round = played_.by_rank[rank].back();
    round.end = round.computed;
    for (const Span& span : moving) round.end = std::max(round.end, span.second);
    played_.exposed += covered(moving, round.computed, round.end);
    for (const Message& message : round_of(rank, number).receives) {
      if (message.is_partial) round.end += times_.kernel;
    }
    free_[rank] = round.end;
  }

  const ContextShape& shape_;
  const ContextPass& pass_;
  const ContextTimes& times_;
  double head_pair_;
  std::size_t ranks_;
  std::vector<double> sending_until_, receiving_until_;  // by rank: its link
  std::vector<double> free_;                             // by rank: the end of the last round
  PlayedContext played_;
};

}  // namespace

PlayedContext play_forward(const ContextPlan& plan, const ContextTimes& times) {
  return ContextPlayer(plan, plan.forward, times, 1.0).play();
}

PlayedContext play_backward(const ContextPlan& plan, const ContextTimes& times) {
  return ContextPlayer(plan, plan.backward, times, times.backward).play();
}

double PlayedContext::idle_fraction() const {
  const double all = makespan * static_cast<double>(by_rank.size());
  return all > 0.0 ? std::max(0.0, 1.0 - computing / all) : 0.0;
}

double PlayedContext::exposed_fraction() const {
  const double all = makespan * static_cast<double>(by_rank.size());
  return all > 0.0 ? exposed / all : 0.0;
}

PlayedContext in_sequence(PlayedContext first, const PlayedContext& second) {
  const double begin = first.makespan;
  for (std::size_t rank = 0; rank < second.by_rank.size(); ++rank) {
    for (PlayedRound round : second.by_rank[rank]) {
      round.begin += begin;
      round.computed += begin;
      round.end += begin;
      for (PlayedMessage& message : round.sends) {
        message.begin += begin;
        message.end += begin;
      }
      first.by_rank[rank].push_back(std::move(round));
    }
  }
  first.makespan += second.makespan;
  first.computing += second.computing;
  first.exposed += second.exposed;
  return first;
}

}  // namespace heddle
