#pragma once

#include <memory>

#include "comm/comm_backend.h"

namespace heddle {

/// Whether NCCL can be used here: heddle was built with its header, and its library is found.
bool has_nccl();

/// Collectives on tensors of this GPU over NCCL, on a stream of their own, and messages between
/// neighbours that were connected; everything else goes to `host`, which joins the same ranks, from
/// a GPU through pinned memory. Ranks are processes, or threads with a GPU each. All ranks of the
/// group call it at the same time. When the world fails, what is under way is aborted. Sums of
/// 16-bit floats are made by NCCL, in its own precision and order. Error(resources) when NCCL
/// cannot be used.
std::shared_ptr<CommBackend> over_nccl(std::shared_ptr<CommBackend> host, Device device);

/// Does what takes a process time when it first uses the device and NCCL, so that others need not
/// wait for it later.
void prepare_nccl(Device device);

}  // namespace heddle
