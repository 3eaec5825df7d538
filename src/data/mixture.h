#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace heddle {

/// Which source each sample of a run comes from. After any number n of samples, source s has given
/// n * weights()[s] of them, less or more than one apart; and sample i is found from i alone.
///
/// Weights become shares a[s] / A with A at most one million: exactly when such shares exist (which
/// holds for weights written with up to six decimals), else rounded, and weights() tells the
/// rounded ones. The sequence then repeats after A samples; one period comes from Tijdeman's
/// solution of the chairman assignment problem (Discrete Mathematics 32, 1980), whose deviation is
/// at most 1 - 1/(2S-2) for S sources, and is kept as a table.
class Mixture {
 public:
  /// Throws Error(usage) when a weight is negative, zero, not finite, or below a millionth of all.
  explicit Mixture(std::span<const double> weights);

  struct Pick {
    int source = 0;
    std::int64_t index = 0;  ///< how many earlier samples came from the same source
  };
  Pick pick(std::int64_t sample) const;

  /// How many of the first `samples` samples come from each source.
  std::vector<std::int64_t> counts(std::int64_t samples) const;
  /// The shares in effect; they sum to one.
  std::vector<double> weights() const;
  std::int64_t period() const { return static_cast<std::int64_t>(table_.size()); }

 private:
  struct Entry {
    std::int32_t source, index;
  };
  std::vector<std::int64_t> shares_;  // a[s]; their sum is the period A
  std::vector<Entry> table_;
};

}  // namespace heddle
