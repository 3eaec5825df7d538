#pragma once

#include <filesystem>
#include <limits>
#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/state_source.h"
#include "checkpoint/stored_tensors.h"

namespace heddle {

/// A whole training checkpoint, open for reading. Files are memory-mapped; tensors are read on
/// demand.
class CheckpointReader : public StateSource {
 public:
  /// Throws Error(data) that names the folder and what is wrong with it.
  explicit CheckpointReader(const std::filesystem::path& folder, Verify verify = Verify::checksums);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const StoredTensors& weights() const { return weights_; }
  const StoredTensors& optimizer() const { return optimizer_; }

  std::string place() const override { return path_.string(); }
  std::vector<std::string> names(std::string_view kind) const override;
  std::optional<Shape> shape(std::string_view kind, std::string_view name) const override;
  void read(std::string_view kind, std::string_view name, std::span<const std::int64_t> begin,
            std::span<const std::int64_t> end, const Tensor& out) const override;

 private:
  std::filesystem::path path_;
  Manifest manifest_;
  StoredTensors weights_, optimizer_;
};

/// The newest checkpoint below `root`, up to step `last`, whose every byte is as it was written;
/// how older ones come into play is said at find_latest.
std::optional<CheckpointReader> open_latest(
    const std::filesystem::path& root,
    std::int64_t last = std::numeric_limits<std::int64_t>::max());

}  // namespace heddle
