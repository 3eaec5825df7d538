#include "recover/membership/causes.h"

#include <utility>

namespace heddle::recover {

void Causes::set(std::uint64_t epoch, std::string text, Source source, Duration detect) {
  Cause& cause = of_[epoch];
  if (cause.source >= source) return;
  cause.text = std::move(text);
  cause.source = source;
  if (source == Source::own) cause.detect = detect;
}

void Causes::ended(std::uint64_t epoch, Time now) { of_[epoch].ended_at = now; }

void Causes::decided(std::uint64_t epoch, Time now) {
  Cause& cause = of_[epoch];
  if (cause.ended_at.count() == 0) cause.ended_at = now;
  cause.decided_at = now;
}

Causes::Cause Causes::of(std::uint64_t epoch) const {
  const auto found = of_.find(epoch);
  return found == of_.end() ? Cause{} : found->second;
}

}  // namespace heddle::recover
