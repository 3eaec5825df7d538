#include "comm/threads/thread_backend.h"

#include <fmt/format.h>

namespace heddle {

std::shared_ptr<CommBackend> ThreadBackend::split(int color, int key, std::int64_t sequence) {
  auto part = shared_->split(rank(), color, key, sequence);
  if (!part.group) return nullptr;
  return std::make_shared<ThreadBackend>(part.rank, std::move(part.group));
}

void ThreadBackend::abort(std::string_view why) noexcept {
  shared_->failure()->fail(fmt::format("rank {} stopped: {}", world_rank(rank()), why));
}

}  // namespace heddle
