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

/// What a stream does between two of its events, for watchdogs.
DeviceProgress progress_between(Event begin, Event end);

}  // namespace heddle
