#pragma once

#include <cstdint>
#include <string_view>

#include "data/token_file.h"

namespace heddle {

/// Tokens [begin, end) of a token file.
struct TokenRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct Splits {
  TokenRange train, held_out;
};

/// Cuts the last `holdout` (a fraction in [0, 1]) of the tokens off. The cut moves to the nearest
/// document boundary where one keeps the held-out part between half and twice the size asked for;
/// otherwise it goes through a document.
Splits split_tokens(const TokenFile& file, double holdout);

/// The order in which training reads the windows of one file. Sample n is window n % windows() of a
/// shuffle made for epoch n / windows(), so every epoch visits every window once and the order is a
/// pure function of (seed, name, n). A window has seq_len + 1 tokens; its last token is the first
/// of the next window, so every token of an epoch is a target once. The tokens that do not fill a
/// window are left out at the start or the end, differently in each epoch.
class WindowSampler {
 public:
  /// `range` holds at least seq_len + 1 tokens. `name` makes sources of one seed differ.
  WindowSampler(TokenRange range, std::int64_t seq_len, std::uint64_t seed, std::string_view name);

  std::int64_t windows() const { return windows_; }
  std::int64_t epoch_of(std::int64_t sample) const { return sample / windows_; }
  /// The first token of the window of `sample`.
  std::int64_t window_begin(std::int64_t sample) const;

 private:
  TokenRange range_;
  std::int64_t seq_len_, windows_;
  std::uint64_t key_;
};

}  // namespace heddle
