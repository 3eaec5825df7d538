#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "checkpoint/model_source.h"
#include "checkpoint/tensor_stats.h"

namespace heddle {

/// Called while bytes are worked through.
using ByteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct TensorReport {
  TensorSpec spec;
  std::optional<TensorStats> stats;  ///< absent for a dtype we do not compute with
};

struct InspectReport {
  std::filesystem::path path;
  ModelSource::Kind kind{};
  std::optional<Manifest> manifest;
  std::vector<TensorReport> weights, optimizer;
  std::optional<std::string> quantization;  ///< what config.json says of it

  std::int64_t parameters() const;
  std::uint64_t size_bytes() const;  ///< of weights and optimizer
  std::int64_t non_finite() const;
  std::int64_t opaque() const;  ///< weights of types that we do not read
};

/// Reads everything below `path` (as ModelSource takes it), a checkpoint's checksums included;
/// throws Error(data) when it is damaged.
InspectReport inspect(const std::filesystem::path& path, const ByteProgress& progress = {});

struct ComparedTensor {
  std::string name;
  std::vector<std::int64_t> sizes;
  TensorDifference difference;
};

struct CompareReport {
  std::vector<ComparedTensor> tensors;    ///< in both, equal shapes; the largest difference first
  std::vector<std::string> missing;       ///< only in the reference
  std::vector<std::string> extra;         ///< only in the first
  std::vector<std::string> not_compared;  ///< in both, with other shapes or opaque dtypes: why

  bool are_equal() const;
};

/// The weights of `path` against those of `reference`.
CompareReport compare(const std::filesystem::path& path, const std::filesystem::path& reference,
                      const ByteProgress& progress = {});

JsonValue to_json(const InspectReport& report);
JsonValue to_json(const CompareReport& report);
/// Tables for people.
std::string to_text(const InspectReport& report);
std::string to_text(const CompareReport& report);

}  // namespace heddle
