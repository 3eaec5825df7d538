#include "comm/nccl/nccl_comm.h"

#include <atomic>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "tensor/device_runtime.h"

namespace heddle {
namespace {

std::shared_ptr<std::uint32_t> pinned_number() {
  std::byte* const block = device_runtime::allocate_pinned(sizeof(std::uint32_t));
  return {new (block) std::uint32_t(0),
          [block](std::uint32_t*) { device_runtime::release_pinned(block); }};
}

}  // namespace

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

StreamMarks::StreamMarks(const Stream& stream)
    : queue_(stream.native()), begun_(pinned_number()), ended_(pinned_number()) {}

void StreamMarks::begin() { device_runtime::write_number(begun_.get(), ++calls_, queue_); }

DeviceProgress StreamMarks::end() {
  device_runtime::write_number(ended_.get(), calls_, queue_);
  const auto has_reached = [](std::uint32_t& place, std::uint32_t call) {
    // Numbers start again from 0 at some time.
    return static_cast<std::int32_t>(std::atomic_ref(place).load() - call) >= 0;
  };
  return {.has_begun = [=, place = begun_, call = calls_] { return has_reached(*place, call); },
          .has_ended = [=, place = ended_, call = calls_] { return has_reached(*place, call); }};
}

}  // namespace heddle
