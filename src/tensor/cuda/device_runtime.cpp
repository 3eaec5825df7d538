#include "tensor/device_runtime.h"

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

cudaStream_t stream_of(void* queue) { return static_cast<cudaStream_t>(queue); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

std::byte* allocate(Device device, std::size_t bytes) {
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
  void* block = nullptr;
  HEDDLE_CUDA(cudaMallocHost(&block, bytes));
  return static_cast<std::byte*>(block);
}

void release_pinned(std::byte* block) noexcept { cudaFreeHost(block); }

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

void synchronize(void* queue) { HEDDLE_CUDA(cudaStreamSynchronize(stream_of(queue))); }

void copy(std::byte* to, const std::byte* from, std::size_t bytes, void* queue) {
  HEDDLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(queue)));
}

std::shared_ptr<void> record(void* queue) {
  cudaEvent_t event = nullptr;
  HEDDLE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::shared_ptr<void> held(event, [](void* handle) { cudaEventDestroy(event_of(handle)); });
  HEDDLE_CUDA(cudaEventRecord(event, stream_of(queue)));
  return held;
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

void wait_on_host(void* event) { HEDDLE_CUDA(cudaEventSynchronize(event_of(event))); }

}  // namespace device_runtime
}  // namespace heddle
