#include <fmt/format.h>

#include <algorithm>

#include "base/json_value.h"
#include "base/strings.h"
#include "checkpoint/inspect.h"

namespace heddle {
namespace {

std::string shape_text(const std::vector<std::int64_t>& sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

JsonValue tensors_json(const std::vector<TensorReport>& tensors) {
  JsonValue list = JsonValue::array();
  for (const TensorReport& tensor : tensors) {
    JsonValue json = JsonValue::object();
    json["name"] = tensor.spec.name;
    json["dtype"] = tensor.spec.dtype_name;
    json["shape"] = tensor.spec.sizes;
    json["bytes"] = tensor.spec.size_bytes();
    if (tensor.stats) {
      json["min"] = tensor.stats->min;
      json["max"] = tensor.stats->max;
      json["mean"] = tensor.stats->mean();
      json["rms"] = tensor.stats->rms();
      json["nan"] = tensor.stats->nan;
      json["inf"] = tensor.stats->inf;
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::string table(const std::vector<TensorReport>& tensors) {
  std::size_t width = 4;
  for (const TensorReport& tensor : tensors) width = std::max(width, tensor.spec.name.size());
  std::string text =
      fmt::format("{:<{}}  {:<8}{:<18}{:>11}{:>11}{:>11}{:>11}{:>11}  {}\n", "name", width, "dtype",
                  "shape", "bytes", "min", "max", "mean", "rms", "not finite");
  for (const TensorReport& tensor : tensors) {
    text += fmt::format("{:<{}}  {:<8}{:<18}{:>11}", tensor.spec.name, width,
                        tensor.spec.dtype_name, shape_text(tensor.spec.sizes),
                        format_bytes(static_cast<double>(tensor.spec.size_bytes())));
    if (tensor.stats) {
      const TensorStats& s = *tensor.stats;
      text += fmt::format("{:>11.4g}{:>11.4g}{:>11.4g}{:>11.4g}", s.min, s.max, s.mean(), s.rms());
      if (s.non_finite() > 0) text += fmt::format("  {} NaN, {} infinite", s.nan, s.inf);
    }
    text += '\n';
  }
  return text;
}

std::string list(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  return fmt::format("{}:\n  {}\n", title, fmt::join(lines, "\n  "));
}

}  // namespace

JsonValue to_json(const InspectReport& report) {
  JsonValue json = JsonValue::object();
  json["path"] = report.path.string();
  json["kind"] = name_of(report.kind);
  json["parameters"] = report.parameters();
  json["bytes"] = report.size_bytes();
  json["non_finite"] = report.non_finite();
  json["opaque"] = report.opaque();
  if (report.quantization) json["quantization"] = *report.quantization;
  if (report.manifest) {
    json["step"] = report.manifest->step;
    json["tokens"] = report.manifest->tokens;
    if (report.manifest->eval_loss) json["eval_loss"] = *report.manifest->eval_loss;
    json["mesh"] = report.manifest->mesh;
    json["checksums_ok"] = true;  // what fails them is refused
  }
  json["tensors"] = tensors_json(report.weights);
  if (report.manifest) json["optimizer"] = tensors_json(report.optimizer);
  return json;
}

std::string to_text(const InspectReport& report) {
  std::string text = table(report.weights);
  if (!report.optimizer.empty()) text += "\noptimizer\n" + table(report.optimizer);
  text += fmt::format("\n{} {}: {} tensors, {} parameters, {}\n", name_of(report.kind),
                      report.path.string(), report.weights.size(),
                      format_thousands(report.parameters()),
                      format_bytes(static_cast<double>(report.size_bytes())));
  if (report.manifest) {
    text += fmt::format("step {}, {} tokens{}, all checksums right\n", report.manifest->step,
                        format_thousands(report.manifest->tokens),
                        report.manifest->eval_loss
                            ? fmt::format(", evaluation loss {:.4f}", *report.manifest->eval_loss)
                            : "");
  }
  if (const std::int64_t bad = report.non_finite(); bad > 0) {
    text += fmt::format("{} elements are not finite\n", format_thousands(bad));
  }
  if (const std::int64_t unread = report.opaque(); unread > 0) {
    text += fmt::format("{} tensors are of types that heddle does not read\n", unread);
  }
  if (report.quantization) {
    text +=
        fmt::format("config.json says that the weights are quantized: {}\n", *report.quantization);
  }
  return text;
}

JsonValue to_json(const CompareReport& report) {
  JsonValue json = JsonValue::object();
  json["equal"] = report.are_equal();
  JsonValue& tensors = json["tensors"] = JsonValue::array();
  for (const ComparedTensor& tensor : report.tensors) {
    JsonValue entry = JsonValue::object();
    entry["name"] = tensor.name;
    entry["shape"] = tensor.sizes;
    entry["max_abs"] = tensor.difference.max_abs;
    entry["relative"] = tensor.difference.relative;
    tensors.push_back(std::move(entry));
  }
  json["missing"] = report.missing;
  json["extra"] = report.extra;
  json["not_compared"] = report.not_compared;
  return json;
}

std::string to_text(const CompareReport& report) {
  std::size_t width = 4;
  for (const ComparedTensor& tensor : report.tensors) width = std::max(width, tensor.name.size());
  std::string text =
      fmt::format("{:<{}}  {:<18}{:>12}{:>12}\n", "name", width, "shape", "max abs", "relative");
  for (const ComparedTensor& tensor : report.tensors) {
    text += fmt::format("{:<{}}  {:<18}{:>12.4g}{:>12.4g}\n", tensor.name, width,
                        shape_text(tensor.sizes), tensor.difference.max_abs,
                        tensor.difference.relative);
  }
  text += list("only in the reference", report.missing);
  text += list("not in the reference", report.extra);
  text += list("not compared", report.not_compared);
  text += report.are_equal() ? "all tensors are equal\n" : "the tensors differ\n";
  return text;
}

}  // namespace heddle
