#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/tcp/tcp_token.h"
#include "recover/membership/note.h"

namespace heddle::recover {

// A note as bytes; numbers are little-endian.
//
//   frame    u32 magic "HdM1", u32 bytes of body, u32 CRC-32C of all that follows
//   seal     64 characters: HMAC-SHA256 of the body with the run's token as key
//   body     u8 kind, u8 zero, u16 members, u16 bits of `hears`, u16 zero,
//            u64 run, u64 sequence, u64 epoch, u32 round, u32 proposer, u32 taken round,
//            u32 taken proposer, i64 step, the sender, the members, then the bits of `hears` from
//            the lowest of each byte on, with zeros behind the last
//   member   u64 id, u32 host, u16 port, u16 zero

inline constexpr std::size_t kFrameBytes = 12;
inline constexpr std::size_t kMostMembers = 4096;
inline constexpr std::size_t kMostNoteBytes = std::size_t{128} * 1024;

/// `token` is not empty: a run whose ranks may change has one.
std::vector<std::byte> seal(const Note& note, const Token& token);

/// How long the whole message is that begins with this frame. Error(peer) where it is none.
Result<std::size_t> sealed_bytes(std::span<const std::byte, kFrameBytes> frame);

/// The note in a whole message. First it is made sure that it came undamaged and from somebody who
/// knows the token; before that nothing of the note is looked at. Error(peer), a line that says
/// which of it does not hold.
Result<Note> open(std::span<const std::byte> message, const Token& token);

}  // namespace heddle::recover
