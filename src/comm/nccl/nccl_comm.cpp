#include "comm/nccl/nccl_comm.h"

#include <thread>
#include <utility>

#include "base/error.h"

namespace heddle {

NcclComm::~NcclComm() {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) nccl_.destroy(comm_);
}

void NcclComm::with(const std::function<void(ncclComm_t)>& use) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) fail(ErrorCode::peer, "NCCL was aborted");
  ncclResult_t state = ncclSuccess;
  HEDDLE_NCCL(nccl_.async_error(comm_, &state));
  HEDDLE_NCCL(state);
  use(comm_);
}

ncclComm_t NcclComm::get() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) fail(ErrorCode::peer, "NCCL was aborted");
  return comm_;
}

/// On a thread of its own: an abort frees memory, which waits for the device's work, and that of
/// another communicator may hang until that one is aborted too.
void NcclComm::wake_all() noexcept {
  const std::lock_guard lock(mutex_);
  if (ncclComm_t const comm = std::exchange(comm_, nullptr)) {
    std::thread([&nccl = nccl_, comm] { nccl.abort(comm); }).detach();
  }
}

DeviceProgress progress_between(Event begin, Event end) {
  const auto is_reached = [](const Event& event) {
    try {
      return event.is_reached();
    } catch (const Error&) {
      return true;  // the failure is told where the stream is waited for
    }
  };
  return {.has_begun = [=, event = std::move(begin)] { return is_reached(event); },
          .has_ended = [=, event = std::move(end)] { return is_reached(event); }};
}

}  // namespace heddle
