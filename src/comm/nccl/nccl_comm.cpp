#include "comm/nccl/nccl_comm.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "tensor/device_runtime.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

std::shared_ptr<std::uint32_t> pinned_number() {
  std::byte* const block = device_runtime::allocate_pinned(sizeof(std::uint32_t));
  return {new (block) std::uint32_t(0),
          [block](std::uint32_t*) { device_runtime::release_pinned(block); }};
}

/// For who is inside of a call when the world fails. Usually calls return at once, and where a
/// process is gone those that wait for it do.
constexpr std::chrono::milliseconds kToLeave{20}, kToLeaveUnrevoked{1000}, kToLeaveRevoked{5000};

}  // namespace

/// What has failed cannot be destroyed: NCCL would leave the call half way.
NcclComm::~NcclComm() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_aborted_) {
      ncclResult_t state = ncclSuccess;
      const bool is_whole = nccl_.async_error(comm_, &state) == ncclSuccess && state == ncclSuccess;
      is_whole ? nccl_.destroy(comm_) : nccl_.abort(comm_);
      return;
    }
  }
  aborting_.join();
}

void NcclComm::with(const std::function<void(ncclComm_t)>& use) {
  const std::lock_guard user(using_);
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted_) fail(ErrorCode::peer, "NCCL was aborted");
    is_used_ = true;
  }
  struct Leaving {
    NcclComm& comm;
    ~Leaving() {
      {
        const std::lock_guard lock(comm.mutex_);
        comm.is_used_ = false;
      }
      comm.left_.notify_all();
    }
  } leaving{*this};
  ncclResult_t state = ncclSuccess;
  HEDDLE_NCCL(nccl_.async_error(comm_, &state));
  HEDDLE_NCCL(state);
  use(comm_);
}

/// On a thread of its own: an abort frees memory, which waits for the device's work, and that of
/// another communicator may hang until that one is aborted too.
void NcclComm::wake_all() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_aborted_, true)) return;
  aborting_ = std::thread([this] { abort(); });
}

/// Who is inside of a call of NCCL's, waiting for a rank that does not come, has to leave before
/// the communicator is freed: a revoked one lets everybody go and is still there.
void NcclComm::abort() {
  {
    std::unique_lock lock(mutex_);
    const auto is_free = [this] { return !is_used_; };
    const auto patience = nccl_.revoke != nullptr ? kToLeave : kToLeaveUnrevoked;
    if (!left_.wait_for(lock, patience, is_free) && nccl_.revoke != nullptr) {
      lock.unlock();
      nccl_.revoke(comm_, 0);
      lock.lock();
      left_.wait_for(lock, kToLeaveRevoked, is_free);
    }
  }
  nccl_.abort(comm_);
}

std::shared_ptr<NcclComm> own_nccl_comm(const NcclLibrary& nccl, ncclComm_t comm,
                                        const CommBackend& host) {
  auto owner = std::make_shared<NcclComm>(nccl, comm);
  if (const auto world = host.failure()) world->watch(owner);
  return owner;
}

namespace {

/// Of a communicator whose calls return before they are done.
void wait_until_made(const NcclLibrary& nccl, ncclComm_t comm, const CommBackend& host) {
  constexpr auto kNap = std::chrono::milliseconds(1);
  const auto world = host.failure();
  ncclResult_t state = ncclInProgress;
  HEDDLE_NCCL(nccl.async_error(comm, &state));
  while (state == ncclInProgress) {
    if (world) world->check();
    std::this_thread::sleep_for(kNap);
    HEDDLE_NCCL(nccl.async_error(comm, &state));
  }
  HEDDLE_NCCL(state);
}

/// Rank 0's, over the host.
ncclUniqueId common_id(const NcclLibrary& nccl, CommBackend& host) {
  ncclUniqueId id{};
  if (host.rank() == 0) HEDDLE_NCCL(nccl.get_unique_id(&id));
  Memory memory;
  constexpr auto kIdBytes = static_cast<std::int64_t>(sizeof(id));
  const Tensor own = memory.alloc({kIdBytes}, DType::u8, MemoryTag::communication);
  const Tensor all = memory.alloc({host.size(), kIdBytes}, DType::u8, MemoryTag::communication);
  std::memcpy(own.bytes(), &id, sizeof(id));
  host.run({.op = CommOp::all_gather, .in = own, .out = all});
  std::memcpy(&id, all.bytes(), sizeof(id));
  return id;
}

}  // namespace

/// A communicator whose calls return at once would start a thread for each of them. So the first
/// one, which can be given up at any time, only serves to make the one that is used.
MadeNcclComm make_nccl_comm(const NcclLibrary& nccl, CommBackend& host) {
  ncclUniqueId const id = common_id(nccl, host);
  ncclConfig_t patient = NCCL_CONFIG_INITIALIZER, hasty = NCCL_CONFIG_INITIALIZER;
  hasty.blocking = 0;
  ncclComm_t first = nullptr, made = nullptr;
  try {
    HEDDLE_NCCL(nccl.init_rank(&first, host.size(), id, host.rank(), &hasty));
    wait_until_made(nccl, first, host);
    HEDDLE_NCCL(nccl.split(first, 0, host.rank(), &made, &patient));
    wait_until_made(nccl, first, host);
  } catch (...) {
    if (first != nullptr) nccl.abort(first);  // which also waits for what writes to `made`
    if (made != nullptr) nccl.abort(made);
    throw;
  }
  return {own_nccl_comm(nccl, first, host), own_nccl_comm(nccl, made, host)};
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
