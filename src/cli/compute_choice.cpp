#include "cli/compute_choice.h"

#include "base/error.h"
#include "config/schema.h"

namespace heddle::cli {

ComputeChoice compute_choice(const std::string& device, const std::string& dtype) {
  if (device != "cpu" && device != "cuda") {
    const std::string meant = config::device_meant_by(device);
    throw Error(ErrorCode::usage, "--device " + device + " is not known",
                meant.empty() ? "use cpu or cuda" : "did you mean " + meant + "?");
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
