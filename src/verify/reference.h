#pragma once

#include <filesystem>
#include <string>

#include "base/json_value.h"
#include "comm/world.h"
#include "model/parallel_plan.h"

namespace heddle {

/// How a folder's reference and our computation differ. `*_rel` is the norm of the difference over
/// the norm of the reference, for the worst parameter where there are several.
struct ReferenceReport {
  double logits_rel = 0, loss_abs = 0;
  double grad_rel = 0;
  std::string grad_worst;
  double train_loss_abs = 0, train_norm_rel = 0;
  double trained_rel = 0;
  std::string trained_worst;
  bool greedy_equal = false;
  int ranks = 1;
  std::string mesh = "dp=1 tp=1 pp=1";
  DType dtype = DType::f32;

  /// The largest differences that the contract allows for computations in this dtype; infinity
  /// where it says nothing.
  struct Limits {
    double logits, loss, gradients, training_losses, training_norms, trained;
    bool greedy;
  };
  Limits limits() const;
  bool ok() const;
};

struct ReferenceOptions {
  int threads = 1;     ///< of each rank
  Device device = {};  ///< of this rank
  DType dtype = DType::f32;
  bool recompute = false;
  ParallelRequest parallel = {};
};

/// Runs a folder in the form that tests/reference/make_references.py writes (a model folder with a
/// reference.safetensors: logits, gradients, ten optimizer steps, greedy text made by PyTorch) and
/// compares. Micro-batches are of one sequence; data-parallel ranks without one run on targets that
/// do not count. Every rank of `world` calls this and gets the same report.
ReferenceReport verify_reference(const std::filesystem::path& folder,
                                 const ReferenceOptions& options, World& world);

JsonValue to_json(const ReferenceReport& report);

}  // namespace heddle
