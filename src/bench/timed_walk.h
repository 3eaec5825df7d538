#pragma once

#include <vector>

#include "comm/world.h"
#include "parallel/sequence/context_walk.h"

namespace heddle {

/// Carries out attention of several ranks without computing it: a tile is a wait of as long as its
/// pairs would take, messages are real. So a rank has an accelerator that it does not have, and
/// what is above the simulated time is the walk's, the communicator's and the links'.
class TimedPass {
 public:
  TimedPass(const ContextProgram& program, ContextPassKind kind, const ContextShape& shape)
      : program_(program), kind_(kind), head_dim_(shape.head_dim) {}

  /// Every rank calls it. Returns the seconds that this one waited in place of computing.
  double run(double seconds_per_head_pair, World& world, Ctx& ctx) const;

 private:
  const ContextProgram& program_;
  const ContextPassKind kind_;
  const std::int64_t head_dim_;
};

/// The calling thread wakes up when it asked to, not within 50 microseconds.
void wake_in_time();

}  // namespace heddle
