#include "nn/saved.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {

void Saved::put(int slot, Tensor tensor) {
  HEDDLE_CHECK(!has(slot), "slot {} was put twice", slot);
  slots_.emplace_back(slot, std::move(tensor));
}

Tensor Saved::take(int slot) {
  const auto at = std::ranges::find(slots_, slot, &std::pair<int, Tensor>::first);
  HEDDLE_CHECK(at != slots_.end(), "slot {} is taken but was not put", slot);
  Tensor tensor = std::move(at->second);
  slots_.erase(at);
  return tensor;
}

const Tensor& Saved::get(int slot) const {
  const auto at = std::ranges::find(slots_, slot, &std::pair<int, Tensor>::first);
  HEDDLE_CHECK(at != slots_.end(), "slot {} is read but was not put", slot);
  return at->second;
}

bool Saved::has(int slot) const {
  return std::ranges::find(slots_, slot, &std::pair<int, Tensor>::first) != slots_.end();
}

Saved& Saved::child(int index) {
  const auto at = static_cast<std::size_t>(index);
  if (at >= children_.size()) children_.resize(at + 1);
  if (!children_[at]) children_[at] = std::make_unique<Saved>();
  return *children_[at];
}

bool Saved::empty() const {
  return slots_.empty() &&
         std::ranges::all_of(children_, [](const auto& child) { return !child || child->empty(); });
}

std::size_t Saved::size_bytes() const {
  std::vector<std::pair<const std::byte*, std::size_t>> held;
  collect(held);
  std::ranges::sort(held);
  held.erase(std::unique(held.begin(), held.end()), held.end());
  std::size_t bytes = 0;
  for (const auto& [address, size] : held) bytes += size;
  return bytes;
}

void Saved::collect(std::vector<std::pair<const std::byte*, std::size_t>>& held) const {
  for (const auto& [slot, tensor] : slots_) held.emplace_back(tensor.bytes(), tensor.size_bytes());
  for (const auto& child : children_) {
    if (child) child->collect(held);
  }
}

}  // namespace heddle
