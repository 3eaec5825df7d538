#include "parallel/offered_sums.h"

#include <utility>

#include "base/check.h"

namespace heddle {

void OfferedSums::offer_beside_experts(Sum sum) {
  HEDDLE_CHECK(beside_rest_.empty(), "sums of gradients begin in the order of offers");
  beside_experts_.push_back(std::move(sum));
}

void OfferedSums::offer_beside_rest(Sum sum) { beside_rest_.push_back(std::move(sum)); }

std::vector<Work> OfferedSums::begin_beside_experts(const Work& last_dispatch, Stream& stream) {
  std::vector<Work> begun;
  for (const Sum& sum : std::exchange(beside_experts_, {})) {
    // Its communicator waits, not the rank.
    sum.ranks->then([last_dispatch](Stream& own) { last_dispatch.follow(own); }, stream);
    begun.push_back(sum.begin(stream));
  }
  return begun;
}

/// Whoever waits for a sum keeps its Work too (ParamStore).
void OfferedSums::begin_behind_experts(Stream& stream) {
  for (auto* const sums : {&beside_experts_, &beside_rest_}) {
    for (const Sum& sum : std::exchange(*sums, {})) static_cast<void>(sum.begin(stream));
  }
}

}  // namespace heddle
