#include "data/sampler.h"

#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "base/rng.h"

namespace heddle {

Splits split_tokens(const TokenFile& file, double holdout) {
  HEDDLE_CHECK(holdout >= 0.0 && holdout <= 1.0, "holdout {}", holdout);
  const std::int64_t count = file.token_count();
  const auto asked = static_cast<std::int64_t>(std::llround(static_cast<double>(count) * holdout));
  std::int64_t cut = count - asked;
  if (cut > 0 && cut < count) {
    const std::int64_t document = file.document_of(cut);
    const std::int64_t before = file.document_start(document);
    const std::int64_t after = file.document_start(document + 1);
    const std::int64_t nearest = cut - before <= after - cut ? before : after;
    const std::int64_t kept_out = count - nearest;
    if (nearest > 0 && 2 * kept_out >= asked && kept_out <= 2 * asked) cut = nearest;
  }
  return {.train = {0, cut}, .held_out = {cut, count}};
}

WindowSampler::WindowSampler(TokenRange range, std::int64_t seq_len, std::uint64_t seed,
                             std::string_view name)
    : range_(range),
      seq_len_(seq_len),
      windows_((range.size() - 1) / seq_len),
      key_(rng_key(rng_key(seed, "data.order"), name)) {
  HEDDLE_CHECK(seq_len > 0 && windows_ > 0, "{} tokens for windows of {} + 1", range.size(),
               seq_len);
}

std::int64_t WindowSampler::window_begin(std::int64_t sample) const {
  HEDDLE_CHECK(sample >= 0, "sample {}", sample);
  const std::uint64_t epoch_key = rng_key(key_, static_cast<std::uint64_t>(epoch_of(sample)));
  const std::int64_t slack = range_.size() - 1 - windows_ * seq_len_;
  const auto shift = static_cast<std::int64_t>(random_u64(rng_key(epoch_key, "shift"), 0) %
                                               static_cast<std::uint64_t>(slack + 1));
  const std::uint64_t window =
      random_permutation(epoch_key, static_cast<std::uint64_t>(sample % windows_),
                         static_cast<std::uint64_t>(windows_));
  return range_.begin + shift + static_cast<std::int64_t>(window) * seq_len_;
}

}  // namespace heddle
