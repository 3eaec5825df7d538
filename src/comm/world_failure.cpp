#include "comm/world_failure.h"

#include "comm/stopped_by_peer.h"

namespace heddle {

void WorldFailure::check() const {
  if (has_failed()) std::rethrow_exception(error());
}

std::exception_ptr WorldFailure::error() const {
  const std::lock_guard lock(mutex_);
  return std::make_exception_ptr(StoppedByPeer(ErrorCode::peer, reason_, teller_));
}

std::string WorldFailure::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

ErrorCode WorldFailure::code() const {
  const std::lock_guard lock(mutex_);
  return code_;
}

int WorldFailure::teller() const {
  const std::lock_guard lock(mutex_);
  return teller_;
}

std::vector<int> WorldFailure::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

bool WorldFailure::fail(std::string reason, ErrorCode code, int teller,
                        std::vector<int> lost) noexcept {
  std::vector<std::weak_ptr<Wakeable>> places;
  {
    const std::lock_guard lock(mutex_);
    if (has_failed()) return false;
    reason_ = std::move(reason);
    code_ = code;
    teller_ = teller;
    lost_ = std::move(lost);
    failed_.store(true, std::memory_order_release);
    places.swap(places_);
  }
  for (const auto& weak : places) {
    if (const auto place = weak.lock()) place->wake_all();
  }
  return true;
}

void WorldFailure::watch(const std::shared_ptr<Wakeable>& place) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_failed()) {
      std::erase_if(places_, [](const auto& weak) { return weak.expired(); });
      places_.push_back(place);
      return;
    }
  }
  place->wake_all();
}

}  // namespace heddle
