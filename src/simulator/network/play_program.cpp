#include "simulator/network/play_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "simulator/network/flow_network.h"
#include "simulator/network/placement.h"

namespace heddle::network {
namespace {

/// Ranks at work; a step at a time, from end to end.
class ProgramPlayer {
 public:
  ProgramPlayer(const Topology& topology, const FlowProgram& program, const PlayOptions& options)
      : program_(match(program)),
        name_(program.name),
        hosts_(place_ranks(topology, program.ranks(), options.placement)),
        router_(topology, options.routing),
        network_(topology, options.tolerance),
        transfers_(program_.transfers.size()),
        ranks_(hosts_.size()) {
    played_.rank_seconds.resize(hosts_.size());
    played_.transfers = static_cast<std::int64_t>(transfers_.size());
    for (const Transfer& transfer : program_.transfers) bytes_ += transfer.bytes;
  }

  PlayedProgram run(const PlayOptions& options) {
    HEDDLE_CHECK(options.begin_seconds.empty() || options.begin_seconds.size() == ranks_.size(),
                 "{} begins for {} ranks", options.begin_seconds.size(), ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      post(static_cast<int>(rank),
           options.begin_seconds.empty() ? 0.0 : options.begin_seconds[rank]);
    }
    for (auto ended = network_.advance(); !ended.empty(); ended = network_.advance()) {
      // Copied: what follows an end begins in the network.
      const std::vector<Ended> batch(ended.begin(), ended.end());
      for (const Ended& piece : batch) end_piece(piece);
      if (options.on_progress) report(options);
    }
    if (done_ != played_.transfers) refuse_deadlock();
    for (const double end : played_.rank_seconds) played_.seconds = std::max(played_.seconds, end);
    played_.solves = network_.solves();
    return std::move(played_);
  }

 private:
  struct Progress {
    std::vector<Piece> pieces = {};  ///< until it begins
    std::size_t left = 0;            ///< pieces that have not ended
    int posted = 0;                  ///< ends
    double begin = 0.0;
  };
  struct Rank {
    std::size_t round = 0, left = 0;  ///< transfers of the round
    int pieces = 0;                   ///< under way from here
  };

  void report(const PlayOptions& options) const {
    const auto all = static_cast<std::uint64_t>(bytes_);
    const auto moved = static_cast<std::uint64_t>(network_.bytes_moved());
    options.on_progress(done_ == played_.transfers ? all : std::min(moved, all), all);
  }

  void post(int rank, double time) {
    Rank& state = ranks_[static_cast<std::size_t>(rank)];
    const auto& rounds = program_.by_rank[static_cast<std::size_t>(rank)];
    const auto is_empty = [&] {
      return rounds[state.round].sends.empty() && rounds[state.round].receives.empty();
    };
    while (state.round < rounds.size() && is_empty()) ++state.round;
    played_.rank_seconds[static_cast<std::size_t>(rank)] = time;
    if (state.round == rounds.size()) return;
    const auto& [sends, receives] = rounds[state.round];
    state.left = sends.size() + receives.size();
    route(rank, sends);
    for (const auto* side : {&sends, &receives}) {
      for (const std::uint32_t id : *side) {
        transfers_[id].begin = std::max(transfers_[id].begin, time);
        if (++transfers_[id].posted == 2) begin(id);
      }
    }
  }

  void route(int rank, const std::vector<std::uint32_t>& sends) {
    std::vector<Outgoing> messages;
    for (const std::uint32_t id : sends) {
      const Transfer& transfer = program_.transfers[id];
      messages.push_back({hosts_[static_cast<std::size_t>(transfer.destination)], transfer.bytes});
    }
    for (Piece& piece : router_.route(hosts_[static_cast<std::size_t>(rank)], messages)) {
      transfers_[sends[piece.message]].pieces.push_back(std::move(piece));
    }
  }

  void begin(std::uint32_t id) {
    Progress& progress = transfers_[id];
    Rank& source = ranks_[static_cast<std::size_t>(program_.transfers[id].source)];
    progress.left = progress.pieces.size();
    played_.pieces += static_cast<std::int64_t>(progress.left);
    source.pieces += static_cast<int>(progress.left);
    played_.most_pieces_from_host = std::max(played_.most_pieces_from_host, source.pieces);
    for (Piece& piece : progress.pieces) network_.begin(progress.begin, std::move(piece), id);
    progress.pieces = {};
  }

  void end_piece(const Ended& ended) {
    const Transfer& transfer = program_.transfers[ended.id];
    --ranks_[static_cast<std::size_t>(transfer.source)].pieces;
    if (--transfers_[ended.id].left > 0) return;
    ++done_;
    const double begin = transfers_[ended.id].begin;
    if (ended.time - begin > played_.slowest.end - played_.slowest.begin) {
      played_.slowest = {.source = transfer.source,
                         .destination = transfer.destination,
                         .bytes = transfer.bytes,
                         .begin = begin,
                         .end = ended.time};
    }
    for (const int rank : {transfer.source, transfer.destination}) {
      Rank& state = ranks_[static_cast<std::size_t>(rank)];
      if (--state.left > 0) continue;
      ++state.round;
      post(rank, ended.time);
    }
  }

  /// A transfer of the rank's round whose other end has not been posted; one is there while the
  /// rank waits and nothing is under way.
  const Transfer& awaited(int rank) const {
    const std::size_t at = static_cast<std::size_t>(rank);
    const auto& [sends, receives] = program_.by_rank[at][ranks_[at].round];
    for (const auto* side : {&sends, &receives}) {
      for (const std::uint32_t id : *side) {
        if (transfers_[id].posted < 2) return program_.transfers[id];
      }
    }
    HEDDLE_CHECK(false, "rank {} waits for nothing", rank);
    return program_.transfers.front();
  }

  [[noreturn]] void refuse_deadlock() const {
    const auto is_stuck = [&](std::size_t rank) {
      return ranks_[rank].round < program_.by_rank[rank].size();
    };
    std::size_t rank = 0;
    while (!is_stuck(rank)) ++rank;
    // Each waits for one that waits: after as many steps as there are ranks, we are in a circle.
    const auto next = [&](std::size_t from) {
      const Transfer& t = awaited(static_cast<int>(from));
      return static_cast<std::size_t>(t.source == static_cast<int>(from) ? t.destination
                                                                         : t.source);
    };
    for (std::size_t i = 0; i < ranks_.size(); ++i) rank = next(rank);
    std::string circle;
    const std::size_t first = rank;
    do {
      const Transfer& t = awaited(static_cast<int>(rank));
      const bool is_send = t.source == static_cast<int>(rank);
      circle += fmt::format("{}rank {} in round {} waits to {} {:g} bytes {} rank {}",
                            circle.empty() ? "" : "; ", rank, ranks_[rank].round,
                            is_send ? "send" : "receive", t.bytes, is_send ? "to" : "from",
                            is_send ? t.destination : t.source);
      rank = next(rank);
    } while (rank != first);
    throw Error(ErrorCode::data, fmt::format("{} cannot go on: {}", name_, circle),
                "put the two ends of a message into rounds that are reached together");
  }

  MatchedProgram program_;
  std::string name_;
  std::vector<int> hosts_;
  Router router_;
  FlowNetwork network_;
  std::vector<Progress> transfers_;
  std::vector<Rank> ranks_;
  std::int64_t done_ = 0;
  double bytes_ = 0.0;
  PlayedProgram played_;
};

}  // namespace

PlayedProgram play(const Topology& topology, const FlowProgram& program,
                   const PlayOptions& options) {
  return ProgramPlayer(topology, program, options).run(options);
}

}  // namespace heddle::network
