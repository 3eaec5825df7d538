#include "comm/tcp/tcp_token.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/sha256.h"

namespace heddle {
namespace {

constexpr std::size_t kHashBlock = 64;
constexpr std::size_t kHashDigest = 32;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::array<std::byte, kHashDigest> from_hex(const std::string& hex) {
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::array<std::byte, kHashDigest> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(16 * value(hex[2 * i]) + value(hex[2 * i + 1]));
  }
  return bytes;
}

/// RFC 2104.
std::string hmac(std::string_view key, std::string_view role, std::span<const std::byte> what) {
  std::array<std::byte, kHashBlock> padded{};
  if (key.size() > kHashBlock) {
    Sha256 shorter;
    shorter.update(bytes_of(key));
    const auto digest = from_hex(shorter.finish());
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::memcpy(padded.data(), key.data(), key.size());
  }
  for (std::byte& byte : padded) byte ^= std::byte{0x36};
  Sha256 inner;
  inner.update(padded);
  inner.update(bytes_of(role));
  inner.update(what);
  const auto digest = from_hex(inner.finish());
  for (std::byte& byte : padded) byte ^= std::byte{0x36} ^ std::byte{0x5c};
  Sha256 outer;
  outer.update(padded);
  outer.update(digest);
  return outer.finish();
}

}  // namespace

Nonce make_nonce() {
  Nonce nonce;
  ssize_t got = 0;
  do {
    got = getrandom(nonce.data(), nonce.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(nonce.size())) {
    throw Error(ErrorCode::resources, "the system gives no random numbers");
  }
  return nonce;
}

Token::Token(std::string text, const std::string& source) : text_(std::move(text)) {
  if (text_.size() >= kLeastBytes) return;
  throw Error(ErrorCode::usage,
              fmt::format("the token of {} has {} characters, which can be guessed; at least {} "
                          "are needed",
                          source, text_.size(), kLeastBytes),
              "make one with: openssl rand -hex 32");
}

Proof Token::prove(std::string_view role, std::span<const std::byte> what) const {
  const std::string digest = hmac(text_, role, what);
  Proof proof;
  std::copy(digest.begin(), digest.end(), proof.begin());
  return proof;
}

bool Token::accepts(const Proof& proof, std::string_view role,
                    std::span<const std::byte> what) const {
  const Proof expected = prove(role, what);
  unsigned different = 0;
  for (std::size_t i = 0; i < proof.size(); ++i) {
    different |= static_cast<unsigned char>(proof[i]) ^ static_cast<unsigned char>(expected[i]);
  }
  return different == 0;
}

}  // namespace heddle
