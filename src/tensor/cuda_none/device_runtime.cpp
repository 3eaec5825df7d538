#include "tensor/device_runtime.h"

#include "base/error.h"

namespace heddle {

int cuda_device_count() { return 0; }

namespace device_runtime {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::resources, "this heddle was built without CUDA",
              "set run.device = \"cpu\", or build where nvcc, cuBLASLt and cuDNN are installed");
}

}  // namespace

LaunchLock::LaunchLock() = default;
LaunchLock::~LaunchLock() = default;
std::byte* allocate(Device, std::size_t) { refuse(); }
void release(Device, std::byte*) noexcept {}
void zero(Device, std::byte*, std::size_t) { refuse(); }
void upload(Device, std::byte*, const std::byte*, std::size_t) { refuse(); }
std::byte* allocate_pinned(std::size_t) { refuse(); }
void release_pinned(std::byte*) noexcept {}
DeviceMemory device_memory(Device) { refuse(); }
DeviceModel device_model(Device) { refuse(); }
void use(Device) { refuse(); }
std::shared_ptr<void> make_queue(Device) { refuse(); }
void synchronize(void*) { refuse(); }
void copy(std::byte*, const std::byte*, std::size_t, void*) { refuse(); }
void write_number(std::uint32_t*, std::uint32_t, void*) { refuse(); }
std::shared_ptr<void> record(void*) { refuse(); }
void wait(void*, void*) { refuse(); }
bool is_reached(void*) { refuse(); }
void wait_on_host(void*) { refuse(); }
std::shared_ptr<void> make_time_point() { refuse(); }
void note_time(void*, void*) { refuse(); }
double seconds_between(void*, void*) { refuse(); }

}  // namespace device_runtime
}  // namespace heddle
