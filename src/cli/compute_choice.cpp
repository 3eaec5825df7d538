#include "cli/compute_choice.h"

#include "base/error.h"

namespace heddle::cli {

ComputeChoice compute_choice(const std::string& device, const std::string& dtype) {
  if (device != "cpu" && device != "cuda") {
    throw Error(ErrorCode::usage, "--device " + device + " is not known", "use cpu or cuda");
  }
  if (dtype != "f32" && dtype != "bf16") {
    throw Error(ErrorCode::usage, "--dtype " + dtype + " is not computed in", "use f32 or bf16");
  }
  if (device == "cpu" && dtype == "bf16") {
    throw Error(ErrorCode::usage, "--dtype bf16 is not computed on CPU",
                "use --dtype f32, or --device cuda");
  }
  return {.device = {device == "cuda" ? Device::Kind::cuda : Device::Kind::cpu, 0},
          .dtype = dtype == "bf16" ? DType::bf16 : DType::f32};
}

}  // namespace heddle::cli
