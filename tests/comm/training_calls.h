#pragma once

#include "comm/world.h"

namespace heddle::testing {

inline constexpr int kSteps = 12;

/// Steps of what training does: sums over tp, gradients over dp in the background, a message to the
/// next rank, a norm over all.
inline void train(World& world) {
  Memory memory;
  Stream stream(1);
  const int rank = world.rank(), size = world.size();
  const auto tp = world.all().split(rank / 2, rank, "tp");
  const auto dp = world.all().split(rank % 2, rank, "dp");
  dp->run_in_background(true);
  const auto tensor = [&](std::int64_t count) {
    return memory.zeros({count}, DType::f32, MemoryTag::communication);
  };
  for (int step = 0; step < kSteps; ++step) {
    world.flight().set_tag({.what = "step", .microbatch = step});
    const Tensor grads = tensor(64), norm = tensor(1);
    tp->all_reduce(tensor(32), ReduceOp::sum, stream).wait(stream);
    const Work reduced = dp->all_reduce(grads, ReduceOp::sum, stream);
    const Work received = world.all().recv(tensor(16), (rank + size - 1) % size, stream);
    const Work sent = world.all().send(tensor(16), (rank + 1) % size, stream);
    received.wait(stream);
    sent.wait(stream);
    reduced.wait(stream);
    world.all().all_reduce(norm, ReduceOp::sum, stream).wait(stream);
  }
}

}  // namespace heddle::testing
