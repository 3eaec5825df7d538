#include "model/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/decoder.h"

namespace heddle {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";

bool is_frozen(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

/// Without what differs between layers: "q_proj, k_proj".
std::string ends_of(const std::vector<std::string>& modules) {
  std::vector<std::string> ends;
  for (const std::string& module : modules) {
    const std::string end = module.substr(module.rfind('.') + 1);
    if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
  }
  return fmt::format("{}", fmt::join(ends, ", "));
}

}  // namespace

double LoraSpec::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (is_rank_stabilized ? std::sqrt(r) : r);
}

bool LoraSpec::adapts(std::string_view module) const {
  return targets.empty() || std::ranges::any_of(targets, [&](const std::string& target) {
           return is_target(target, module);
         });
}

bool is_target(std::string_view target, std::string_view module) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0;
  // Where the last * stands and how much of the name it takes: more, when what follows fails.
  std::optional<std::size_t> star;
  std::size_t taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star) {
      p = *star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

void Tuning::mark(Parameter& parameter) const {
  parameter.trains = !lora || parameter.is_adapter;
  if (freeze.empty() || parameter.parts.empty() || parameter.is_adapter) return;
  const std::string& first = parameter.parts.front().name;
  const bool freezes = is_frozen(freeze, first);
  for (const Parameter::Part& part : parameter.parts) {
    if (is_frozen(freeze, part.name) == freezes) continue;
    throw Error(ErrorCode::usage,
                fmt::format("train.freeze freezes {} and not {}, which are one matrix here",
                            freezes ? first : part.name, freezes ? part.name : first),
                "freeze both or neither");
  }
  parameter.trains = parameter.trains && !freezes;
}

std::string adapter_name(std::string_view module, AdapterPart part) {
  return fmt::format("{}{}{}", kPrefix, module, part == AdapterPart::down ? kDown : kUp);
}

std::optional<std::string> adapted_module(std::string_view tensor) {
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  for (const std::string_view end : {kDown, kUp}) {
    if (!tensor.ends_with(end)) continue;
    tensor.remove_prefix(kPrefix.size());
    tensor.remove_suffix(end.size());
    return std::string(tensor);
  }
  return std::nullopt;
}

std::vector<std::string> adaptable_modules(const ModelSpec& spec) {
  ModelSpec all = spec;
  all.tuning = {.lora = LoraSpec{}, .freeze = {}};
  std::vector<std::string> modules;
  for (const std::string& name : tensor_names(all)) {
    const auto module = adapted_module(name);
    if (module && std::ranges::find(modules, *module) == modules.end()) modules.push_back(*module);
  }
  return modules;
}

void check_tuning(const ModelSpec& spec) {
  if (spec.tuning.lora) {
    const std::vector<std::string> modules = adaptable_modules(spec);
    for (const std::string& target : spec.tuning.lora->targets) {
      if (std::ranges::any_of(modules,
                              [&](const std::string& module) { return is_target(target, module); }))
        continue;
      throw Error(ErrorCode::usage,
                  fmt::format("lora.targets: \"{}\" is no linear layer in a block of this {} model",
                              target, spec.family),
                  fmt::format("its linear layers are {}", ends_of(modules)));
    }
  }
  if (spec.tuning.freeze.empty()) return;
  const std::vector<std::string> names = tensor_names(spec);
  std::size_t frozen = 0;
  for (const std::string& name : names) frozen += is_frozen(spec.tuning.freeze, name) ? 1 : 0;
  for (const std::string& pattern : spec.tuning.freeze) {
    if (std::ranges::any_of(
            names, [&](const std::string& name) { return matches_pattern(pattern, name); }))
      continue;
    throw Error(ErrorCode::usage,
                fmt::format("train.freeze: no tensor of this {} model is called \"{}\"",
                            spec.family, pattern),
                fmt::format("its names are those of its files, as {}; * stands for any text",
                            names[names.size() / 2]));
  }
  if (frozen == names.size()) {
    throw Error(ErrorCode::usage, "train.freeze leaves nothing to train",
                "name fewer tensors of the model");
  }
}

}  // namespace heddle
