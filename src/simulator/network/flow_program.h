#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::network {

struct Message {
  int peer = 0;  ///< rank
  double bytes = 0.0;
};

/// What a rank posts at once; its next round begins when all of it is done.
struct Round {
  std::vector<Message> sends = {}, receives = {};
};

/// A collective, as what each rank sends and receives. The k-th send from a to b meets the k-th
/// receive at b from a, and begins when both are posted.
struct FlowProgram {
  std::string name;
  std::vector<std::vector<Round>> by_rank;

  int ranks() const { return static_cast<int>(by_rank.size()); }
  /// That are sent.
  std::int64_t messages() const;
};

/// A send and the receive it meets.
struct Transfer {
  int source = 0, destination = 0;  ///< ranks
  double bytes = 0.0;
  int source_round = 0, destination_round = 0;
};

struct MatchedProgram {
  std::vector<Transfer> transfers;
  /// By rank and round: the transfers that it sends, and those that it receives.
  struct Posted {
    std::vector<std::uint32_t> sends, receives;
  };
  std::vector<std::vector<Posted>> by_rank;
};

/// Error(data) names the first operation that has no partner, or whose partner has another size, or
/// that makes no sense by itself.
MatchedProgram match(const FlowProgram& program);

}  // namespace heddle::network
