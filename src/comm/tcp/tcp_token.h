#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace heddle {

/// Random bytes that are used once.
using Nonce = std::array<std::byte, 16>;
Nonce make_nonce();

/// Shows that somebody knows a token, without showing the token.
using Proof = std::array<char, 64>;

/// A secret that all ranks of a run were given, so that nobody else joins them. Never travels:
/// ranks send proofs. May be empty: there is none.
class Token {
 public:
  static constexpr std::size_t kLeastBytes = 16;

  Token() = default;
  /// Error(usage) where the text is too short to keep anybody out; `source` says where it is from.
  Token(std::string text, const std::string& source);

  explicit operator bool() const { return !text_.empty(); }
  /// HMAC-SHA256 of `what`, which begins with who proves: a proof cannot be sent back.
  Proof prove(std::string_view role, std::span<const std::byte> what) const;
  /// Takes the same time wherever the two differ.
  bool accepts(const Proof& proof, std::string_view role, std::span<const std::byte> what) const;

 private:
  std::string text_;
};

}  // namespace heddle
