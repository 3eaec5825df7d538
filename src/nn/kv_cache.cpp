#include "nn/kv_cache.h"

#include <algorithm>

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

KvCache::KvCache(const Shape& shape, Memory& memory) : shape_(shape) {
  const heddle::Shape tensor{shape.sequences, shape.capacity, shape.kv_heads, shape.head_dim};
  for (int layer = 0; layer < shape.layers; ++layer) {
    keys_.push_back(memory.alloc(tensor, shape.dtype, MemoryTag::kv_cache));
    values_.push_back(memory.alloc(tensor, shape.dtype, MemoryTag::kv_cache));
  }
}

void KvCache::keep_at(const std::vector<std::int64_t>& places) {
  HEDDLE_CHECK(std::ssize(places_) == held_, "{} of {} tokens with places", places_.size(), held_);
  keep_only(std::ssize(places));
  places_.insert(places_.end(), places.begin(), places.end());
}

std::int64_t KvCache::held_before(std::int64_t place) const {
  HEDDLE_CHECK(std::ssize(places_) == held_ + kept_of(0), "tokens without places in a cache");
  return std::ranges::lower_bound(places_, place) - places_.begin();
}

void KvCache::store(int layer, const Tensor& k_BSGK, const Tensor& v_BSGK, Stream& stream) {
  const auto at = static_cast<std::size_t>(layer);
  const std::int64_t kept = kept_of(k_BSGK.size(1)), end = held_ + kept;
  HEDDLE_CHECK(end <= shape_.capacity, "{} tokens in a cache for {}", end, shape_.capacity);
  ops::copy(k_BSGK.slice(1, 0, kept), keys_[at].slice(1, held_, end), stream);
  ops::copy(v_BSGK.slice(1, 0, kept), values_[at].slice(1, held_, end), stream);
}

void KvCache::advance(std::int64_t tokens) {
  length_ += tokens;
  held_ += kept_of(tokens);
  kept_.reset();
}

Tensor KvCache::keys(int layer, std::int64_t new_tokens) const {
  return keys_[static_cast<std::size_t>(layer)].slice(1, 0, held_ + kept_of(new_tokens));
}

Tensor KvCache::values(int layer, std::int64_t new_tokens) const {
  return values_[static_cast<std::size_t>(layer)].slice(1, 0, held_ + kept_of(new_tokens));
}

}  // namespace heddle
