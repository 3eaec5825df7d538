#pragma once

#include <nccl.h>

#include <functional>

namespace heddle {

/// NCCL's functions, found at run time: the program also starts where the library is missing.
struct NcclLibrary {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommSplit) split;
  decltype(&ncclCommAbort) abort;
  ncclResult_t (*revoke)(ncclComm_t comm, int flags);  ///< null in older versions
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
};

/// Null when libnccl.so.2 is not found or lacks one of them.
const NcclLibrary* nccl_library();

/// Makes calls that NCCL is to start together. The group is closed also where one of them throws:
/// everything that the thread asks of NCCL later would else wait for its end.
void in_nccl_group(const NcclLibrary& nccl, const std::function<void()>& calls);

/// Throws Error(peer) with the call and NCCL's own words.
[[noreturn]] void nccl_failed(ncclResult_t result, const char* call);

}  // namespace heddle

/// Every call of NCCL goes through this.
#define HEDDLE_NCCL(call)                                                  \
  do {                                                                     \
    if (const ncclResult_t heddle_result = (call);                         \
        heddle_result != ncclSuccess && heddle_result != ncclInProgress) { \
      ::heddle::nccl_failed(heddle_result, #call);                         \
    }                                                                      \
  } while (false)
