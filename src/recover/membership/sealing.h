#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "comm/tcp/tcp_token.h"

namespace heddle::recover {

// How everything travels between processes of a run; numbers are little-endian.
//
//   frame    u32 magic, u32 bytes of body, u32 CRC-32C of these two, u32 CRC-32C of what follows:
//            who believed a damaged length would wait for it while other messages go by unread
//   seal     64 characters: HMAC-SHA256 of the body with the run's token as key
//   body     by kind

inline constexpr std::size_t kFrameBytes = 16;

/// What is sealed.
struct SealedKind {
  std::uint32_t magic = 0;
  std::string_view role = {};       ///< part of what is proved: one kind is never taken for another
  std::string_view about = {};      ///< "members", for the reader
  std::size_t least = 0, most = 0;  ///< bytes of a body
};

/// Whether a message of this kind begins so.
bool begins(const SealedKind& kind, std::span<const std::byte, kFrameBytes> frame);

/// `token` is not empty: a run whose ranks may change has one.
std::vector<std::byte> seal_body(const SealedKind& kind, std::span<const std::byte> body,
                                 const Token& token);

/// How long the whole message is that begins with this frame. Error(peer) where it is none, or
/// came damaged.
Result<std::size_t> sealed_bytes(const SealedKind& kind,
                                 std::span<const std::byte, kFrameBytes> frame);

/// The body of a whole message, once it is made sure that it came undamaged and from somebody who
/// knows the token; before that nothing of it is looked at. Error(peer), a line that says which of
/// it does not hold.
Result<std::span<const std::byte>> open_body(const SealedKind& kind,
                                             std::span<const std::byte> message,
                                             const Token& token);

}  // namespace heddle::recover
