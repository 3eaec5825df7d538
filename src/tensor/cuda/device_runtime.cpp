#include "tensor/device_runtime.h"

#include <cudaTypedefs.h>

#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "tensor/cuda/check.h"

namespace heddle {

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  int device = -1;
  cudaGetDevice(&device);
  cudaGetLastError();  // what is not sticky is forgotten, so that cleaning up can go on
  throw Error(ErrorCode::resources,
              fmt::format("CUDA device {}: {} ({}) in {} [{}:{}]", device,
                          cudaGetErrorString(error), cudaGetErrorName(error), call, file, line));
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

namespace device_runtime {
namespace {

/// The driver reads it when it starts. With the usual 8 connections streams share them, and one
/// that waits for another rank would hold up the work of another stream.
[[maybe_unused]] const int kConnections = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

std::mutex launch_mutex;
thread_local int locks = 0;

/// What this thread has of the launch lock is given away for a while.
class LaunchPause {
 public:
  LaunchPause() {
    if (locks > 0) launch_mutex.unlock();
  }
  ~LaunchPause() {
    if (locks > 0) launch_mutex.lock();
  }
  LaunchPause(const LaunchPause&) = delete;
  LaunchPause& operator=(const LaunchPause&) = delete;
};

cudaStream_t stream_of(void* queue) { return static_cast<cudaStream_t>(queue); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

std::shared_ptr<void> make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  HEDDLE_CUDA(cudaEventCreateWithFlags(&event, flags));
  return {event, [](void* handle) { cudaEventDestroy(event_of(handle)); }};
}

/// A function of the driver that the run-time library has no other way to.
PFN_cuStreamWriteValue32_v11070 stream_write_value() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    HEDDLE_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &found, 11070,
                                                 cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) {
      throw Error(ErrorCode::resources, "the CUDA driver has no cuStreamWriteValue32",
                  "use a driver of CUDA 11.7 or newer");
    }
    return reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(found);
  }();
  return function;
}

}  // namespace

LaunchLock::LaunchLock() {
  if (locks++ == 0) launch_mutex.lock();
}
LaunchLock::~LaunchLock() {
  if (--locks == 0) launch_mutex.unlock();
}

std::byte* allocate(Device device, std::size_t bytes) {
  const LaunchLock lock;
  use(device);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  HEDDLE_CUDA(error);
  return static_cast<std::byte*>(block);
}

void release(Device device, std::byte* block) noexcept {
  const LaunchLock lock;
  // At the end of the process the driver may be gone already; there is nothing left to free then.
  if (cudaSetDevice(device.index) == cudaSuccess) cudaFree(block);
}

void zero(Device device, std::byte* block, std::size_t bytes) {
  use(device);
  HEDDLE_CUDA(cudaDeviceSynchronize());
  HEDDLE_CUDA(cudaMemset(block, 0, bytes));
  HEDDLE_CUDA(cudaDeviceSynchronize());
}

void upload(Device device, std::byte* block, const std::byte* from, std::size_t bytes) {
  use(device);
  HEDDLE_CUDA(cudaDeviceSynchronize());
  HEDDLE_CUDA(cudaMemcpy(block, from, bytes, cudaMemcpyHostToDevice));
  HEDDLE_CUDA(cudaDeviceSynchronize());
}

std::byte* allocate_pinned(std::size_t bytes) {
  const LaunchLock lock;
  void* block = nullptr;
  HEDDLE_CUDA(cudaMallocHost(&block, bytes));
  return static_cast<std::byte*>(block);
}

void release_pinned(std::byte* block) noexcept {
  const LaunchLock lock;
  cudaFreeHost(block);
}

DeviceMemory device_memory(Device device) {
  use(device);
  DeviceMemory memory;
  HEDDLE_CUDA(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

DeviceModel device_model(Device device) {
  cudaDeviceProp properties;
  HEDDLE_CUDA(cudaGetDeviceProperties(&properties, device.index));
  return {properties.name, properties.multiProcessorCount};
}

void use(Device device) { HEDDLE_CUDA(cudaSetDevice(device.index)); }

std::shared_ptr<void> make_queue(Device device) {
  const int devices = cuda_device_count();
  if (device.index >= devices) {
    throw Error(ErrorCode::resources,
                fmt::format("CUDA device {} is asked for, but {} found", device.index,
                            devices == 0 ? "none is" : fmt::format("only {} are", devices)),
                "check nvidia-smi, or set run.device = \"cpu\"");
  }
  use(device);
  cudaStream_t stream = nullptr;
  HEDDLE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, [](void* held) { cudaStreamDestroy(stream_of(held)); }};
}

void synchronize(void* queue) {
  const LaunchPause pause;
  HEDDLE_CUDA(cudaStreamSynchronize(stream_of(queue)));
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes, void* queue) {
  HEDDLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(queue)));
}

void write_number(std::uint32_t* place, std::uint32_t number, void* queue) {
  const CUresult result =
      stream_write_value()(stream_of(queue), reinterpret_cast<CUdeviceptr>(place), number,
                           CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::resources,
                fmt::format("cuStreamWriteValue32: CUDA error {}", static_cast<int>(result)));
  }
}

std::shared_ptr<void> record(void* queue) {
  std::shared_ptr<void> event = make_event(cudaEventDisableTiming);
  HEDDLE_CUDA(cudaEventRecord(event_of(event.get()), stream_of(queue)));
  return event;
}

void wait(void* queue, void* event) {
  HEDDLE_CUDA(cudaStreamWaitEvent(stream_of(queue), event_of(event), 0));
}

bool is_reached(void* event) {
  const cudaError_t state = cudaEventQuery(event_of(event));
  if (state == cudaErrorNotReady) return false;
  HEDDLE_CUDA(state);
  return true;
}

void wait_on_host(void* event) {
  const LaunchPause pause;
  HEDDLE_CUDA(cudaEventSynchronize(event_of(event)));
}

std::shared_ptr<void> make_time_point() { return make_event(cudaEventDefault); }

void note_time(void* point, void* queue) {
  HEDDLE_CUDA(cudaEventRecord(event_of(point), stream_of(queue)));
}

double seconds_between(void* from, void* to) {
  float milliseconds = 0;
  HEDDLE_CUDA(cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to)));
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace device_runtime
}  // namespace heddle
