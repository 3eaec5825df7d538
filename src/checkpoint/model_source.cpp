#include "checkpoint/model_source.h"

#include "base/error.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// The newest checkpoint when `path` is a run folder or a folder of checkpoints, else `path`.
fs::path resolve(const fs::path& path, Verify verify) {
  std::error_code error;
  const fs::path below = path / "checkpoints";
  const fs::path root = fs::is_directory(below, error) ? below : path;
  if (list_checkpoints(root).empty()) return path;
  return find_latest(root, verify).value();
}

}  // namespace

ModelSource::ModelSource(const fs::path& path, Verify verify) : path_(resolve(path, verify)) {
  std::error_code error;
  if (fs::exists(path_ / kManifestFile, error) || fs::exists(path_ / kCommitFile, error)) {
    kind_ = Kind::checkpoint;
    CheckpointReader reader(path_, verify);
    manifest_ = reader.manifest();
    weights_ = reader.weights();
    optimizer_ = reader.optimizer();
    return;
  }
  kind_ = fs::is_directory(path_, error) ? Kind::folder : Kind::file;
  const HfFolder folder(has_adapters(path_) ? path_ / kAdapterFile : path_);
  weights_.emplace(folder.files());
  optimizer_.emplace(std::span<const std::shared_ptr<const SafetensorsFile>>{});
}

std::vector<TextFile> ModelSource::companions() const {
  return kind_ == Kind::file ? std::vector<TextFile>{} : read_companions(path_);
}

std::string_view name_of(ModelSource::Kind kind) {
  switch (kind) {
    case ModelSource::Kind::file: return "safetensors file";
    case ModelSource::Kind::folder: return "model folder";
    case ModelSource::Kind::checkpoint: return "checkpoint";
  }
  return "?";
}

}  // namespace heddle
