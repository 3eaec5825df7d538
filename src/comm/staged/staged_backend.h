#pragma once

#include <memory>

#include "comm/comm_backend.h"

namespace heddle {

/// Tensors on a GPU over ranks that are joined on the host: they go through pinned host memory.
/// Tensors on the host go to the inner backend as they are. Correct everywhere, and slow: the host
/// waits for what is sent.
std::shared_ptr<CommBackend> through_host(std::shared_ptr<CommBackend> inner, Device device);

}  // namespace heddle
