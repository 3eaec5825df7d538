#pragma once

#include <string>

#include "base/json_value.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "observe/terminal.h"
#include "tensor/device.h"

namespace heddle {

/// Where a mesh first departs from one rank.
struct MeshReport {
  bool ok = true;
  double tolerance = 0;
  std::string tensor = {};     ///< "block 3", or the name of a parameter; empty when all agree
  std::string direction = {};  ///< "forward", "backward", "gradient", "update" or "loss"
  int microbatch = -1;         ///< of the step, over all replicas; -1 where there is none
  double rel = 0;  ///< norm of the difference over the norm on one rank: there, or the worst
  double loss_one = 0, loss_mesh = 0;  ///< of the first step, or of the one that differs
  std::int64_t steps = 0;
  int ranks = 1;
  std::string mesh = {};
};

struct MeshOptions {
  int threads = 1;
  Device device = {};  ///< of this rank
  std::int64_t steps = 3;
  double tolerance = 1e-4;
  std::filesystem::path work_folder = {};
};

/// Runs the first steps of a run on one rank and on the mesh of `world`, with the same weights and
/// data. In the first step every unit's output and input gradient, every parameter's gradient and
/// update are compared, in this order; in later ones the loss. Every rank calls it and gets the
/// same report; each runs the one-rank side for itself.
MeshReport verify_mesh(const config::RunConfig& config, const MeshOptions& options, World& world);

JsonValue to_json(const MeshReport& report);

}  // namespace heddle
