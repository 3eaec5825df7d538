#pragma once

#include <string>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace heddle::cli {

/// Where and in what a verb computes.
struct ComputeChoice {
  Device device;
  DType dtype = DType::f32;
};

/// From the options --device ("cpu", "cuda") and --dtype ("f32", "bf16"). Error(usage) for other
/// words, and for bf16 on CPU, where nothing computes in it.
ComputeChoice compute_choice(const std::string& device, const std::string& dtype);

}  // namespace heddle::cli
