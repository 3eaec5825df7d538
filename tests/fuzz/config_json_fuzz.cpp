// Model configs: any bytes give a ModelSpec or an Error(data), and what a spec says of itself can
// be computed.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/registry.h"
#include "model/rope_tables.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  heddle::ModelSpec spec;
  try {
    spec = heddle::model_spec(heddle::parse_json(text, "config.json"), "config.json");
  } catch (const heddle::Error& e) {
    if (e.code() != heddle::ErrorCode::data) std::abort();
    return 0;
  }
  if (spec.parameter_count() < spec.matmul_parameter_count()) std::abort();
  if (spec.matmul_parameter_count() <= 0) std::abort();
  if (!std::isfinite(heddle::training_flops_per_token(spec, spec.max_positions))) std::abort();
  if (spec.rope && spec.rope->dims <= 4096) {
    for (const double frequency : heddle::rope_frequencies(*spec.rope)) {
      if (std::isnan(frequency)) std::abort();
    }
  }
  return 0;
}
