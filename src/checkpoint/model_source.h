#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/hf_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_tensors.h"

namespace heddle {

/// Where weights can be read from, whatever form they have: a safetensors file, a model folder, a
/// folder of adapters, a checkpoint, or a folder of checkpoints or a run folder, which stand for
/// their newest checkpoint.
/// Throws Error(data) that names what is wrong; a checkpoint that is not whole is refused.
class ModelSource {
 public:
  enum class Kind { file, folder, checkpoint };

  explicit ModelSource(const std::filesystem::path& path, Verify verify = Verify::sizes);

  /// The file or folder that was found.
  const std::filesystem::path& path() const { return path_; }
  Kind kind() const { return kind_; }
  /// Of a checkpoint.
  const std::optional<Manifest>& manifest() const { return manifest_; }
  const StoredTensors& weights() const { return *weights_; }
  /// Empty unless this is a checkpoint.
  const StoredTensors& optimizer() const { return *optimizer_; }
  /// config.json and the tokenizer's files; none beside a single file.
  std::vector<TextFile> companions() const;

 private:
  std::filesystem::path path_;
  Kind kind_ = Kind::folder;
  std::optional<Manifest> manifest_;
  std::optional<StoredTensors> weights_, optimizer_;
};

std::string_view name_of(ModelSource::Kind kind);

}  // namespace heddle
