#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// Copies the bytes of a contiguous tensor to another of the same dtype and count, on the same or
/// another device; the only way between devices. Ordered by `stream`, which is a CUDA stream when
/// either end is on a GPU. `from` in host memory may be changed on return; `to` in host memory may
/// be read after stream.synchronize().
void transfer(const Tensor& from, const Tensor& to, Stream& stream);

/// The values in host memory, when they are there: the tensor itself when it lies there already,
/// else a copy, for which the host waits. Any tensor that is contiguous.
Tensor to_host(const Tensor& tensor, Stream& stream);

/// The values in the memory's device: the tensor itself when it lies there already.
Tensor to_device(const Tensor& tensor, Memory& memory, MemoryTag tag, Stream& stream);

}  // namespace heddle
