#include "checkpoint/hf_config.h"

#include "base/json.h"

namespace heddle {
namespace {

const char* config_name_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

Json object_of(const std::string& config, const std::string& where) {
  Json json = parse_json(config, where);
  if (!json.is_object()) fail(ErrorCode::data, "{}: not a JSON object", where);
  return json;
}

}  // namespace

std::string config_with_dtype(const std::string& config, DType dtype, const std::string& where) {
  Json json = object_of(config, where);
  const Json before = json;
  const std::string name = config_name_of(dtype);
  if (json.contains("dtype")) json["dtype"] = name;
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = name;
  return json == before ? config : json.dump(2) + "\n";
}

std::optional<std::string> quantization_of(const std::string& config, const std::string& where) {
  const Json json = object_of(config, where);
  const auto at = json.find("quantization_config");
  if (at == json.end() || at->is_null()) return std::nullopt;
  const bool is_named =
      at->is_object() && at->contains("quant_method") && (*at)["quant_method"].is_string();
  return is_named ? (*at)["quant_method"].get<std::string>() : "quantization_config";
}

}  // namespace heddle
