#include "simulator/network/flow_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace heddle::network {
namespace {

/// One end of a transfer.
struct End {
  int source = 0, destination = 0, round = 0;
  double bytes = 0.0;
  std::size_t place = 0;  ///< in its round
};

enum class Side : std::uint8_t { send, receive };

std::string describe(const End& end, Side side) {
  return side == Side::send ? fmt::format("rank {}, round {}: send of {:g} bytes to rank {}",
                                          end.source, end.round, end.bytes, end.destination)
                            : fmt::format("rank {}, round {}: receive of {:g} bytes from rank {}",
                                          end.destination, end.round, end.bytes, end.source);
}

void check(const FlowProgram& program, const End& end, int peer, Side side) {
  const char* wrong = end.source == end.destination              ? "a rank cannot be its own peer"
                      : peer < 0 || peer >= program.ranks()      ? "there is no such rank"
                      : !(end.bytes >= 0.0 && end.bytes < 1e300) ? "that is not a size"
                                                                 : nullptr;
  if (wrong == nullptr) return;
  throw Error(ErrorCode::data, fmt::format("{}: {}: {}", program.name, describe(end, side), wrong));
}

/// All ends of one side by pair of ranks, in the order in which they are posted.
std::vector<End> ends_of(const FlowProgram& program, Side side) {
  std::vector<End> ends;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    const auto& rounds = program.by_rank[static_cast<std::size_t>(rank)];
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      const auto& messages = side == Side::send ? rounds[round].sends : rounds[round].receives;
      for (std::size_t i = 0; i < messages.size(); ++i) {
        const auto [peer, bytes] = messages[i];
        ends.push_back({.source = side == Side::send ? rank : peer,
                        .destination = side == Side::send ? peer : rank,
                        .round = static_cast<int>(round),
                        .bytes = bytes,
                        .place = i});
        check(program, ends.back(), peer, side);
      }
    }
  }
  std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    return std::tie(a.source, a.destination) < std::tie(b.source, b.destination);
  });
  return ends;
}

[[noreturn]] void refuse_unmatched(const FlowProgram& program, const End& end, Side side) {
  throw Error(ErrorCode::data,
              fmt::format("{}: {} has no {} that meets it", program.name, describe(end, side),
                          side == Side::send ? "receive" : "send"),
              "every send needs a receive at its peer, in the same order");
}

/// The pair of ranks that comes first; a list that has ended comes last.
bool comes_before(const std::vector<End>& a, const std::vector<End>& b, std::size_t i) {
  if (i >= a.size() || i >= b.size()) return i < a.size();
  return std::tie(a[i].source, a[i].destination) < std::tie(b[i].source, b[i].destination);
}

}  // namespace

std::int64_t FlowProgram::messages() const {
  std::int64_t count = 0;
  for (const auto& rounds : by_rank) {
    for (const Round& round : rounds) count += static_cast<std::int64_t>(round.sends.size());
  }
  return count;
}

MatchedProgram match(const FlowProgram& program) {
  const auto sends = ends_of(program, Side::send), receives = ends_of(program, Side::receive);
  MatchedProgram matched;
  for (const auto& rounds : program.by_rank) {
    auto& posted = matched.by_rank.emplace_back();
    for (const Round& round : rounds) {
      posted.emplace_back();
      posted.back().sends.resize(round.sends.size());
      posted.back().receives.resize(round.receives.size());
    }
  }
  for (std::size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
    if (comes_before(sends, receives, i)) refuse_unmatched(program, sends[i], Side::send);
    if (comes_before(receives, sends, i)) refuse_unmatched(program, receives[i], Side::receive);
    const End &send = sends[i], &receive = receives[i];
    if (send.bytes != receive.bytes) {
      throw Error(ErrorCode::data,
                  fmt::format("{}: {} meets {}", program.name, describe(send, Side::send),
                              describe(receive, Side::receive)),
                  "give both the same size");
    }
    const auto at = [&](int rank, int round) -> MatchedProgram::Posted& {
      return matched.by_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)];
    };
    at(send.source, send.round).sends[send.place] = static_cast<std::uint32_t>(i);
    at(send.destination, receive.round).receives[receive.place] = static_cast<std::uint32_t>(i);
    matched.transfers.push_back({.source = send.source,
                                 .destination = send.destination,
                                 .bytes = send.bytes,
                                 .source_round = send.round,
                                 .destination_round = receive.round});
  }
  return matched;
}

}  // namespace heddle::network
