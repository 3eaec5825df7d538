#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/tcp/tcp_token.h"
#include "recover/membership/note.h"
#include "recover/membership/sealing.h"

namespace heddle::recover {

// A note as bytes, sealed (sealing.h) with magic "HdM1"; numbers are little-endian.
//
//   body     u8 kind, u8 zero, u16 members, u16 bits of `hears`, u16 zero,
//            u64 run, u64 sequence, u64 epoch, u32 round, u32 proposer, u32 taken round,
//            u32 taken proposer, i64 step, the sender, the members, then the bits of `hears` from
//            the lowest of each byte on, with zeros behind the last
//   member   u64 id, u32 host, u16 port, u16 zero

extern const SealedKind kNoteKind;
inline constexpr std::size_t kMostMembers = 4096;
inline constexpr std::size_t kMostNoteBytes = std::size_t{128} * 1024;

std::vector<std::byte> seal(const Note& note, const Token& token);

/// The note in a whole message (see open_body). Error(peer) also where it makes no sense.
Result<Note> open(std::span<const std::byte> message, const Token& token);

}  // namespace heddle::recover
