#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/comm_backend.h"
#include "comm/flight_recorder.h"
#include "comm/nccl/nccl_library.h"
#include "comm/world_failure.h"
#include "tensor/stream.h"

namespace heddle {

/// NCCL's communicator. Ended once: aborted when the world fails, else destroyed by the destructor.
/// A kernel that waits for a lost rank spins until its communicator is aborted, and so does every
/// stream and every free of memory behind it; the process can compute again afterwards.
class NcclComm : public Wakeable {
 public:
  NcclComm(const NcclLibrary& nccl, ncclComm_t comm) : nccl_(nccl), comm_(comm) {}
  /// When it returns, nothing of an abort is under way any more.
  ~NcclComm() override;
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// What the comm is used for happens in `use`, by one thread at a time. It may wait for other
  /// ranks, as connecting does; an abort makes that return. Error(peer) when it was aborted or NCCL
  /// has failed.
  void with(const std::function<void(ncclComm_t)>& use);
  /// Returns at once: aborting goes on behind it.
  void wake_all() noexcept override;

 private:
  void abort();

  const NcclLibrary& nccl_;
  ncclComm_t const comm_;
  std::mutex using_;  // held by who uses it
  std::mutex mutex_;
  std::condition_variable left_;
  bool is_used_ = false, is_aborted_ = false;
  std::thread aborting_;
};

/// Of ranks of `host`'s world, whose failure aborts it.
std::shared_ptr<NcclComm> own_nccl_comm(const NcclLibrary& nccl, ncclComm_t comm,
                                        const CommBackend& host);

/// A communicator of the ranks of `host`, and the one that served to make it. Ending one takes NCCL
/// half a second, so that is left to when both are.
struct MadeNcclComm {
  std::shared_ptr<NcclComm> maker = {}, comm = {};
};
/// Made without NCCL ever waiting for a rank that does not come: StoppedByPeer when the world fails
/// meanwhile. The device is the calling thread's.
MadeNcclComm make_nccl_comm(const NcclLibrary& nccl, CommBackend& host);

/// How far a stream is with its calls, for watchdogs.
class StreamMarks {
 public:
  explicit StreamMarks(const Stream& stream);
  /// Behind what the stream has been given so far, a call begins; or it ends.
  void begin();
  DeviceProgress end();

 private:
  void* const queue_;
  const std::shared_ptr<std::uint32_t> begun_, ended_;  // pinned; the number of the last call
  std::uint32_t calls_ = 0;
};

}  // namespace heddle
