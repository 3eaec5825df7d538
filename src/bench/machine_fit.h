#pragma once

#include <string>
#include <vector>

#include "base/json_value.h"
#include "bench/machine_bench.h"
#include "planner/machine.h"

namespace heddle {

/// What is known of a machine without measuring, and what was measured.
struct MachineSamples {
  std::string name = {};         ///< of the machine
  std::string device_name = {};  ///< of the processor or the GPU
  std::string link_name = {};    ///< "threads of one process"
  double memory_bytes = 0;       ///< of a device
  int processors = 1;            ///< that take tiles of a product in waves: of a GPU
  DType dtype = DType::f32;
  bool is_gpu = false;
  std::vector<RankRates> rates = {};  ///< by ranks, ascending; not empty
  std::vector<LinkRates> links = {};  ///< those with more than one rank
};

/// The constants with which the planner's cost model comes nearest to the samples. The first rates
/// are the device's, the others those of ranks that share it.
planner::Machine fit_machine(const MachineSamples& samples);

/// Relative error of every product of the samples, predicted with the machine that was fitted to
/// them: root of the mean square.
double product_error(const planner::Device& device, DType dtype, const RankRates& rates);

/// What was measured of one rank alone, each product beside the seconds that `machine` gives it.
JsonValue samples_json(const MachineSamples& samples, const planner::Machine& machine);

}  // namespace heddle
