#include "tensor/stream.h"

#include "tensor/device_runtime.h"

namespace heddle {

bool Event::is_reached() const { return !handle_ || device_runtime::is_reached(handle_.get()); }

void Event::wait_on_host() const {
  if (handle_) device_runtime::wait_on_host(handle_.get());
}

Stream::Stream(int threads, Device device) : Stream(threads, device, false) {}

Stream::Stream(int threads, Device device, bool is_dry)
    : device_(device), threads_(threads), is_dry_(is_dry) {
  if (is_dry || device.kind == Device::Kind::cpu) return;
  queue_ = device_runtime::make_queue(device);
  library_state_ = std::make_shared<std::shared_ptr<void>>();
}

Stream Stream::dry(Device device) { return Stream(1, device, true); }

Event Stream::record() {
  Event event;
  if (queue_) event.handle_ = device_runtime::record(queue_.get());
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.handle_) return;
  if (queue_) {
    device_runtime::wait(queue_.get(), event.handle_.get());
  } else {
    event.wait_on_host();  // a CPU stream works inline
  }
}

void Stream::synchronize() {
  if (queue_) device_runtime::synchronize(queue_.get());
}

}  // namespace heddle
