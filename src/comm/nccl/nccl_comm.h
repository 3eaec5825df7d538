#pragma once

#include <functional>
#include <mutex>

#include "comm/flight_recorder.h"
#include "comm/nccl/nccl_library.h"
#include "comm/world_failure.h"
#include "tensor/stream.h"

namespace heddle {

/// NCCL's communicator. Ended once: by abort from any thread when the world fails, else by the
/// destructor.
class NcclComm : public Wakeable {
 public:
  NcclComm(const NcclLibrary& nccl, ncclComm_t comm) : nccl_(nccl), comm_(comm) {}
  ~NcclComm() override;

  /// What the comm is used for happens in `use`, which an abort does not interrupt. Error(peer)
  /// when it was aborted or NCCL has failed.
  void with(const std::function<void(ncclComm_t)>& use);
  /// For what may block: an abort must not wait for it.
  ncclComm_t get();
  void wake_all() noexcept override;

 private:
  const NcclLibrary& nccl_;
  std::mutex mutex_;
  ncclComm_t comm_;
};

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
