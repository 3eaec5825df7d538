#include "observe/expert_load.h"

#include <algorithm>
#include <numeric>

namespace heddle::observe {

std::int64_t ExpertLoad::choices() const {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

double ExpertLoad::most_over_mean() const {
  const std::int64_t all = choices();
  if (all == 0) return 1.0;
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) *
         static_cast<double>(counts.size()) / static_cast<double>(all);
}

}  // namespace heddle::observe
