#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

struct ModelSpec;
struct Parameter;

/// Low-rank adapters beside linear layers of blocks (docs/design/062-fine-tuning.md).
struct LoraSpec {
  std::int64_t rank = 8;
  double alpha = 8.0;
  bool is_rank_stabilized = false;  ///< alpha / sqrt(rank) in place of alpha / rank
  /// As PEFT's target_modules: a module's name or its end behind a dot. Empty: all linear layers.
  std::vector<std::string> targets = {};
  double dropout = 0.0;  ///< the share of an adapter's input that is dropped in training
  std::uint64_t dropout_seed = 0;

  bool operator==(const LoraSpec&) const = default;
  double scale() const;
  bool adapts(std::string_view module) const;
};

/// What of a model trains.
struct Tuning {
  std::optional<LoraSpec> lora;     ///< then only adapters do
  std::vector<std::string> freeze;  ///< tensors whose names these match do not; * is any text

  bool operator==(const Tuning&) const = default;
  bool trains_all() const { return !lora && freeze.empty(); }
  /// Says of a parameter whether it trains. Error(usage) where that differs between tensors that
  /// are one matrix here (q, k and v).
  void mark(Parameter& parameter) const;
};

/// Whether a target is the module or its end.
bool is_target(std::string_view target, std::string_view module);
/// Whether a name is as the pattern says, in which * stands for any text and ? for any character.
bool matches_pattern(std::string_view pattern, std::string_view name);

enum class AdapterPart : std::uint8_t { down, up };
/// The name of an adapter's tensor in PEFT's files, which is also ours.
std::string adapter_name(std::string_view module, AdapterPart part);
/// The module that such a tensor belongs to; absent for other names.
std::optional<std::string> adapted_module(std::string_view tensor);

/// The modules of blocks that can have adapters, in the model's order.
std::vector<std::string> adaptable_modules(const ModelSpec& spec);

/// Error(usage) names a target or a pattern that nothing of the model matches, and a model of which
/// nothing trains.
void check_tuning(const ModelSpec& spec);

}  // namespace heddle
