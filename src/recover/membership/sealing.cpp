#include "recover/membership/sealing.h"

#include <fmt/format.h>

#include <cstring>

#include "base/crc32c.h"
#include "comm/tcp/tcp_greeting.h"
#include "recover/membership/little_endian.h"

namespace heddle::recover {
namespace {

constexpr std::size_t kSealBytes = sizeof(Proof);
constexpr std::size_t kSizeAt = 4, kFrameSumAt = 8, kRestSumAt = 12;
constexpr const char* kDamaged = "was damaged on its way";

std::uint32_t checksum(std::span<const std::byte> bytes) {
  return crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Error not_as(const SealedKind& kind, const char* what) {
  return {ErrorCode::peer, fmt::format("a message about {} {}", kind.about, what)};
}

}  // namespace

bool begins(const SealedKind& kind, std::span<const std::byte, kFrameBytes> frame) {
  return number_at<std::uint32_t>(frame, 0) == kind.magic;
}

std::vector<std::byte> seal_body(const SealedKind& kind, std::span<const std::byte> body,
                                 const Token& token) {
  HEDDLE_CHECK(static_cast<bool>(token), "a message about {} without a token", kind.about);
  HEDDLE_CHECK(body.size() >= kind.least && body.size() <= kind.most,
               "a message about {} of {} bytes", kind.about, body.size());
  const Proof proof = token.prove(kind.role, body);
  std::vector<std::byte> rest(kSealBytes);
  std::memcpy(rest.data(), proof.data(), kSealBytes);
  rest.insert(rest.end(), body.begin(), body.end());
  std::vector<std::byte> message;
  message.reserve(kFrameBytes + rest.size());
  put_number(message, kind.magic);
  put_number(message, static_cast<std::uint32_t>(body.size()));
  put_number(message, checksum(message));
  put_number(message, checksum(rest));
  message.insert(message.end(), rest.begin(), rest.end());
  return message;
}

Result<std::size_t> sealed_bytes(const SealedKind& kind,
                                 std::span<const std::byte, kFrameBytes> frame) {
  if (!begins(kind, frame)) return not_as(kind, "does not begin as one does");
  if (number_at<std::uint32_t>(frame, kFrameSumAt) != checksum(frame.first<kFrameSumAt>())) {
    return not_as(kind, kDamaged);
  }
  const std::size_t body = number_at<std::uint32_t>(frame, kSizeAt);
  if (body < kind.least || body > kind.most) return not_as(kind, "has a length that none has");
  return kFrameBytes + kSealBytes + body;
}

Result<std::span<const std::byte>> open_body(const SealedKind& kind,
                                             std::span<const std::byte> message,
                                             const Token& token) {
  HEDDLE_CHECK(static_cast<bool>(token), "a message about {} without a token", kind.about);
  if (message.size() < kFrameBytes) return not_as(kind, "is too short");
  const auto bytes = sealed_bytes(kind, message.first<kFrameBytes>());
  if (!bytes) return bytes.error();
  if (*bytes != message.size()) return not_as(kind, "does not have the length that it says");
  const auto sealed = message.subspan(kFrameBytes);
  if (number_at<std::uint32_t>(message, kRestSumAt) != checksum(sealed)) {
    return not_as(kind, kDamaged);
  }
  Proof proof;
  std::memcpy(proof.data(), sealed.data(), kSealBytes);
  const auto body = sealed.subspan(kSealBytes);
  if (!token.accepts(proof, kind.role, body)) {
    return Error(ErrorCode::peer,
                 fmt::format("a message about {} is from somebody with another token", kind.about),
                 kSameTokenHint);
  }
  return body;
}

}  // namespace heddle::recover
