#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "recover/checkfree.h"

namespace heddle::recover {

// Compiled without contraction of products and sums, which would leave out a rounding.
void mean_of_neighbours(std::span<const float> before, float a, std::span<const float> after,
                        float b, std::span<float> out) {
  HEDDLE_CHECK(before.size() == out.size() && after.size() == out.size(),
               "the mean of {} and {} values for {}", before.size(), after.size(), out.size());
  if (!(a >= 0.0F && b >= 0.0F && std::isfinite(a + b))) {
    fail(ErrorCode::data, "gradient norms that neighbours are weighted by are {} and {}", a, b);
  }
  if (a + b == 0.0F) a = b = 1.0F;
  const float sum = a + b;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float left = a * before[i], right = b * after[i];
    out[i] = (left + right) / sum;
  }
}

}  // namespace heddle::recover
