#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "recover/membership/note.h"
#include "recover/membership/sealing.h"

namespace heddle::recover {

/// What a member says of itself beside its heartbeats: notes are about who belongs to the run,
/// statuses about what one does there. Each stands for all before it.
struct Status {
  enum class End : std::uint8_t {
    none,
    here,       ///< the run is over for the sender
    everywhere  ///< the sender knows that it is for all members
  };

  std::uint64_t run = 0;
  MemberId from = 0;
  std::uint64_t sequence = 0;  ///< of its sender's statuses, from 1
  std::uint64_t epoch = 0;
  bool is_stepping = false;  ///< in a step, where nobody waits long for a call; else for anything
  End end = End::none;
  std::string cause = {};   ///< what the sender knows this epoch to have ended of; else empty
  std::string report = {};  ///< to_text(RankReport), by its rank in the epoch; may be empty

  friend bool operator==(const Status&, const Status&) = default;
};

// As bytes, sealed with magic "HdS1": u64 run, u64 from, u64 sequence, u64 epoch, u8 flags (1:
// stepping, 2: end here, 4: everywhere), u8 zero, u16 bytes of `cause`, `cause`, `report`.

extern const SealedKind kStatusKind;

/// A cause that is too long for it is cut.
std::vector<std::byte> seal(const Status& status, const Token& token);
/// Error(peer) where it is not what `seal` made with this token.
Result<Status> open_status(std::span<const std::byte> message, const Token& token);

}  // namespace heddle::recover
