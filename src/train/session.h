#pragma once

#include <memory>
#include <optional>

#include "engine/model.h"
#include "engine/peer_copy.h"
#include "optim/optimizer.h"
#include "parallel/exchange/outer_steps.h"
#include "train/run_setup.h"

namespace heddle {

/// What of a run is in this rank's memory: mesh, model, optimizer. It knows nothing of steps, files
/// or reports and can be made anew from the setup. All ranks make theirs at the same time.
struct Session {
  explicit Session(const RunSetup& setup);

  Stream stream;
  Memory memory;  ///< of the device
  Memory host;    ///< the same on CPU
  Mesh mesh;
  Model model;  ///< its weights are to be started or restored
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<OuterSteps> outer;  ///< where there are several sites
  std::optional<PeerCopy> copy;       ///< of another rank's state, where copies are kept
};

}  // namespace heddle
