#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace heddle {

/// The kind of the weights themselves; other kinds are states that an optimizer keeps of them
/// ("exp_avg"), and "master": exact weights beside rounded ones.
inline constexpr const char* kWeightsKind = "weights";
inline constexpr const char* kMasterKind = "master";

/// The name of a tensor in the files of a checkpoint: "NAME" of a weight, "KIND.NAME" of a state.
inline std::string state_key(std::string_view kind, std::string_view name) {
  std::string key(name);
  return kind == kWeightsKind ? key : std::string(kind) + "." + key;
}

/// Where the state of a run can be read from: a checkpoint, or the memory of ranks that have it.
/// Tensors have a kind and the name of the weight they belong to; any box of one can be asked for.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// What it is, for messages.
  virtual std::string place() const = 0;
  virtual std::vector<std::string> names(std::string_view kind) const = 0;
  /// Of the whole tensor; nullopt when it is not there.
  virtual std::optional<Shape> shape(std::string_view kind, std::string_view name) const = 0;
  /// Copies the box [begin, end) to `out` in host memory, converting floats; out's shape is
  /// end - begin.
  virtual void read(std::string_view kind, std::string_view name,
                    std::span<const std::int64_t> begin, std::span<const std::int64_t> end,
                    const Tensor& out) const = 0;
};

}  // namespace heddle
