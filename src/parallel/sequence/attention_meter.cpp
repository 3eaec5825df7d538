#include "parallel/sequence/attention_meter.h"

#include <utility>

namespace heddle {

void AttentionMeter::add(int layer, ContextPassKind pass, What what, const StreamTime& begin,
                         const StreamTime& end) {
  stretches_.push_back({layer, pass, what, begin, end});
}

std::map<int, AttentionTimes> AttentionMeter::take() {
  is_on_ = false;
  for (const Stretch& stretch : stretches_) {
    AttentionTimes& times = by_layer_[stretch.layer];
    auto& sums = stretch.what == What::all ? times.seconds : times.exposed;
    sums[static_cast<std::size_t>(stretch.pass)] +=
        StreamTime::seconds_between(stretch.begin, stretch.end);
  }
  stretches_.clear();
  return std::exchange(by_layer_, {});
}

}  // namespace heddle
