#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace heddle {

/// What adapter_config.json of PEFT says of low-rank adapters.
struct AdapterConfig {
  std::string base;  ///< the model that they belong to: a folder, or a name on a hub
  std::int64_t rank = 0;
  double alpha = 0.0;
  bool is_rank_stabilized = false;
  double dropout = 0.0;                   ///< of an adapter's input, in training
  std::vector<std::string> targets = {};  ///< read from the tensors' names instead
  bool are_in_out = false;                ///< weights of the base are stored [in, out]
};

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
/// The file of tensors, and its stem.
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterStem = "adapter_model";

/// The text of adapter_config.json, as PEFT reads it.
std::string adapter_config_text(const AdapterConfig& config);

/// Whether a folder is one of adapters.
bool has_adapters(const std::filesystem::path& folder);

/// Low-rank adapters in PEFT's form, open for reading. Error(data) names the folder and what of it
/// is not understood: other kinds of adapters, biases, ranks that differ between layers.
class AdapterFolder {
 public:
  explicit AdapterFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const AdapterConfig& config() const { return config_; }
  const SafetensorsFile& tensors() const { return *tensors_; }

 private:
  std::filesystem::path path_;
  AdapterConfig config_;
  std::shared_ptr<const SafetensorsFile> tensors_;
};

}  // namespace heddle
