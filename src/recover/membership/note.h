#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heddle::recover {

/// Drawn at random when a process starts: one that comes back is another member.
using MemberId = std::uint64_t;

/// A process of the run, and where it can be called (numbers in network order, as in Seat).
struct Member {
  MemberId id = 0;
  std::uint32_t host = 0;
  std::uint16_t port = 0;
  friend bool operator==(const Member&, const Member&) = default;
};

/// A membership that was agreed on. Members are in the order of seniority: those who stay keep
/// theirs, newcomers follow.
struct Roster {
  std::uint64_t epoch = 0;
  std::int64_t step = 0;  ///< the last that is finished: from there they go on
  std::vector<Member> members = {};

  std::optional<std::size_t> place_of(MemberId id) const;
  bool has(MemberId id) const { return place_of(id).has_value(); }
  /// Whether those who are `there`, by place, may decide what follows: more than half, or half with
  /// the first. Any two quorums have a member in common.
  bool is_quorum(const std::vector<bool>& there) const;
  /// "3, or 2 with the first of them"
  std::string quorum_text() const;

  friend bool operator==(const Roster&, const Roster&) = default;
};

/// A numbered attempt to agree. Round 0: none.
struct Ballot {
  std::uint32_t round = 0;
  std::uint32_t proposer = 0;                       ///< place in the roster
  auto operator<=>(const Ballot&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// What members tell each other. Every one may be lost, late, repeated or out of order.
struct Note {
  enum class Kind : std::uint8_t {
    heartbeat = 1,
    alarm,     ///< a heartbeat of one for whom the epoch has ended; says who is heard
    prepare,   ///< asks for a promise; has the roster of the epoch, and says who is heard
    promise,   ///< to take no lower ballot; has what was taken before, and says who is heard
    refusal,   ///< a higher ballot was promised, which this is
    propose,   ///< asks to take the next roster
    accepted,  ///< it is taken
    decided,   ///< a roster that is agreed on
    join       ///< asks to be let in
  };
  static constexpr Kind kLastKind = Kind::join;

  Kind kind = Kind::heartbeat;
  std::uint64_t run = 0;
  Member from = {};
  std::uint64_t sequence = 0;  ///< of its sender's notes, from 1
  std::uint64_t epoch = 0;     ///< of `decided` that of its roster, else the sender's
  Ballot ballot = {};
  Ballot taken = {};      ///< of a promise: with this one `members` and `step` were taken
  std::int64_t step = 0;  ///< of the roster that goes with it, else the sender's last finished one
  std::vector<Member> members = {};
  /// Of an alarm, a prepare and a promise, by place: whom the sender hears. Its own place: that it
  /// wants to stay.
  std::vector<bool> hears = {};

  friend bool operator==(const Note&, const Note&) = default;
};

}  // namespace heddle::recover
