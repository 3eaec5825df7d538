#include "parallel/step/outer_policy.h"

#include <algorithm>

namespace heddle {
namespace {

int block_of(const RankUnits& units, const RankUnits::Bucket& bucket) {
  return units.units[static_cast<std::size_t>(bucket.owner)].block;
}

}  // namespace

bool OuterPolicy::begins(std::int64_t step) const {
  for (int fragment = 0; fragment < fragments; ++fragment) {
    if (begins(fragment, step)) return true;
  }
  return false;
}

bool OuterPolicy::has(const RankUnits& units, int fragment) const {
  return std::ranges::any_of(units.buckets, [&](const RankUnits::Bucket& bucket) {
    return fragment_of(block_of(units, bucket)) == fragment && !bucket.parts.empty();
  });
}

std::int64_t OuterPolicy::encoded_bytes(std::int64_t values) const {
  return codec ? static_cast<std::int64_t>(codec->encoded_bytes(values))
               : values * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t OuterPolicy::sent_bytes(const RankUnits& units, int fragment) const {
  std::int64_t bytes = 0;
  for (const RankUnits::Bucket& bucket : units.buckets) {
    if (fragment_of(block_of(units, bucket)) != fragment) continue;
    for (const std::int64_t values : bucket.parts) bytes += encoded_bytes(values);
  }
  return bytes;
}

}  // namespace heddle
