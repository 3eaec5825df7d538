#include "ops/split_vocabulary.h"

#include <cmath>
#include <limits>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/softmax_xent.h"

namespace heddle::ops::cpu {
namespace {

/// One token's statistics, by holder.
template <class T>
class TokenStatistics {
 public:
  TokenStatistics(const T* statistics_N3T, std::int64_t holders, std::int64_t tokens,
                  std::int64_t token)
      : from_(statistics_N3T + token), holders_(holders), tokens_(tokens) {}

  double max(std::int64_t holder) const { return at(holder, 0); }
  double sum(std::int64_t holder) const { return at(holder, 1); }
  double chosen(std::int64_t holder) const { return at(holder, 2); }

  double largest() const {
    double largest = max(0);
    for (std::int64_t n = 1; n < holders_; ++n) largest = std::max(largest, max(n));
    return largest;
  }
  double whole_sum(double largest) const {
    double whole = 0.0;
    for (std::int64_t n = 0; n < holders_; ++n) whole += sum(n) * std::exp(max(n) - largest);
    return whole;
  }

 private:
  double at(std::int64_t holder, std::int64_t which) const {
    return static_cast<double>(from_[(3 * holder + which) * tokens_]);
  }
  const T* const from_;
  const std::int64_t holders_, tokens_;
};

}  // namespace

void merge_row_statistics(const Tensor& statistics_N3T, const Tensor& targets_T,
                          std::int64_t rows_per_holder, std::int64_t own, const Tensor& divisor_T,
                          const Tensor& loss_T, Stream& stream) {
  const std::int64_t holders = statistics_N3T.size(0), tokens = targets_T.count();
  visit_float(statistics_N3T.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto targets = targets_T.host<std::int32_t>();
    const auto divisors = divisor_T.host<T>();
    const auto losses = loss_T.host<double>();
    parallel_for(stream, tokens, kGrain / 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto at = static_cast<std::size_t>(t);
        if (targets[at] == kIgnoreTarget) {
          losses[at] = 0.0;
          divisors[at] = std::numeric_limits<T>::infinity();
          continue;
        }
        const TokenStatistics<T> row(statistics_N3T.data<T>(), holders, tokens, t);
        const std::int64_t owner = targets[at] / rows_per_holder;
        const double largest = row.largest(), sum = row.whole_sum(largest);
        losses[at] = std::log(sum) - (row.chosen(owner) + row.max(owner) - largest);
        divisors[at] = static_cast<T>(sum / std::exp(row.max(own) - largest));
      }
    });
  });
}

void divide_rows(const Tensor& y_TD, const Tensor& divisor_T, Stream& stream) {
  visit_float(y_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* const divisors = divisor_T.data<T>();
    T* const y = y_TD.data<T>();
    const std::int64_t width = y_TD.size(1), stride = y_TD.stride(0);
    parallel_for(stream, y_TD.size(0), kGrain / std::max<std::int64_t>(width, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t t = begin; t < end; ++t) {
                     const T factor = T{1} / divisors[t];
                     T* const row = y + t * stride;
                     for (std::int64_t i = 0; i < width; ++i) row[i] *= factor;
                   }
                 });
  });
}

}  // namespace heddle::ops::cpu
