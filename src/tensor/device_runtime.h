#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/device.h"

/// What this folder needs of a GPU's run-time library. cuda/ has it; cuda_none/ is linked in its
/// place where heddle is built without CUDA: it has no devices and refuses the rest with
/// Error(resources). Handles are opaque, so that no CUDA header is needed to use streams.
namespace heddle::device_runtime {

/// Held by a thread while it calls what may wait inside the driver until the device is idle, which
/// then answers no other thread: launching a kernel for the first time, allocating and freeing
/// memory. Who launches work that waits for another rank holds it too, so that the other one hears
/// of it in any case (docs/design/022-calls-that-a-device-has.md). May be nested; synchronize() and
/// wait_on_host() let go of it while they wait.
class LaunchLock {
 public:
  LaunchLock();
  ~LaunchLock();
  LaunchLock(const LaunchLock&) = delete;
  LaunchLock& operator=(const LaunchLock&) = delete;
};

/// Null when the device has no more.
std::byte* allocate(Device device, std::size_t bytes);
void release(Device device, std::byte* block) noexcept;
/// Writes zeros, after and before all other work of the device: it waits.
void zero(Device device, std::byte* block, std::size_t bytes);
/// Copies from the host, likewise.
void upload(Device device, std::byte* block, const std::byte* from, std::size_t bytes);

/// Host memory that a device copies from and to without the host's help.
std::byte* allocate_pinned(std::size_t bytes);
void release_pinned(std::byte* block) noexcept;

struct DeviceMemory {
  std::size_t free_bytes = 0, total_bytes = 0;
};
DeviceMemory device_memory(Device device);

struct DeviceModel {
  std::string name;    ///< "NVIDIA H200"
  int processors = 1;  ///< streaming multiprocessors
};
DeviceModel device_model(Device device);

/// Makes the device the one that the calling thread's CUDA calls go to.
void use(Device device);

/// A queue of work on the device; destroyed with the last reference.
std::shared_ptr<void> make_queue(Device device);
void synchronize(void* queue);
/// Copies between any two places, in the order of the queue. Host memory that is not pinned may be
/// reused on return.
void copy(std::byte* to, const std::byte* from, std::size_t bytes, void* queue);

/// Writes the number into pinned memory when the queue has come to it: how far a device is can then
/// be seen without asking the driver, which may not answer.
void write_number(std::uint32_t* place, std::uint32_t number, void* queue);

std::shared_ptr<void> record(void* queue);
void wait(void* queue, void* event);
bool is_reached(void* event);
void wait_on_host(void* event);

/// A point of a queue's work whose time is known, noted any number of times: the last one counts.
std::shared_ptr<void> make_time_point();
void note_time(void* point, void* queue);
/// Both have been reached, on the same device.
double seconds_between(void* from, void* to);

}  // namespace heddle::device_runtime
