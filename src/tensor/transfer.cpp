#include "tensor/transfer.h"

#include <cstring>

#include "base/check.h"
#include "tensor/device_runtime.h"

namespace heddle {
namespace {

bool is_host(const Tensor& tensor) { return tensor.device().kind == Device::Kind::cpu; }

}  // namespace

void transfer(const Tensor& from, const Tensor& to, Stream& stream) {
  HEDDLE_CHECK(from.dtype() == to.dtype() && from.count() == to.count() && from.is_contiguous() &&
                   to.is_contiguous(),
               "transfer of {} {} to {} {}", name_of(from.dtype()), from.shape().text(),
               name_of(to.dtype()), to.shape().text());
  if (stream.is_dry() || from.count() == 0) return;
  if (is_host(from) && is_host(to)) {
    std::memcpy(to.bytes(), from.bytes(), from.size_bytes());
    return;
  }
  HEDDLE_CHECK(stream.native() != nullptr, "a transfer with a GPU on a CPU stream");
  device_runtime::copy(to.bytes(), from.bytes(), from.size_bytes(), stream.native());
}

Tensor to_host(const Tensor& tensor, Stream& stream) {
  if (is_host(tensor)) return tensor;
  Memory host;
  const Tensor copy = host.alloc(tensor.shape(), tensor.dtype(), MemoryTag::workspace);
  transfer(tensor, copy, stream);
  stream.synchronize();
  return copy;
}

Tensor to_device(const Tensor& tensor, Memory& memory, MemoryTag tag, Stream& stream) {
  if (tensor.device() == memory.device()) return tensor;
  const Tensor copy = memory.alloc(tensor.shape(), tensor.dtype(), tag);
  transfer(tensor, copy, stream);
  return copy;
}

}  // namespace heddle
