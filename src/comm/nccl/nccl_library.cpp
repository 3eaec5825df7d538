#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <optional>

#include "base/error.h"

namespace heddle {
namespace {

std::optional<NcclLibrary> load() {
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::nullopt;
  bool is_whole = true;
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    is_whole = is_whole && function != nullptr;
  };
  NcclLibrary library{};
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.init_rank, "ncclCommInitRankConfig");
  find(library.split, "ncclCommSplit");
  find(library.abort, "ncclCommAbort");
  find(library.destroy, "ncclCommDestroy");
  find(library.async_error, "ncclCommGetAsyncError");
  find(library.error_string, "ncclGetErrorString");
  find(library.all_reduce, "ncclAllReduce");
  find(library.all_gather, "ncclAllGather");
  find(library.reduce_scatter, "ncclReduceScatter");
  find(library.broadcast, "ncclBroadcast");
  find(library.send, "ncclSend");
  find(library.recv, "ncclRecv");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  library.revoke = reinterpret_cast<decltype(library.revoke)>(dlsym(handle, "ncclCommRevoke"));
  return is_whole ? std::optional(library) : std::nullopt;
}

}  // namespace

const NcclLibrary* nccl_library() {
  static const std::optional<NcclLibrary> library = load();
  return library ? &*library : nullptr;
}

void in_nccl_group(const NcclLibrary& nccl, const std::function<void()>& calls) {
  HEDDLE_NCCL(nccl.group_start());
  try {
    calls();
  } catch (...) {
    nccl.group_end();
    throw;
  }
  HEDDLE_NCCL(nccl.group_end());
}

void nccl_failed(ncclResult_t result, const char* call) {
  const NcclLibrary* const library = nccl_library();
  fail(ErrorCode::peer, "NCCL: {} in {}",
       library != nullptr ? library->error_string(result) : "not loaded", call);
}

}  // namespace heddle
