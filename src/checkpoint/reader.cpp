#include "checkpoint/reader.h"

#include "base/error.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hf_folder.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

Manifest whole_manifest(const fs::path& folder, Verify verify) {
  Result<Manifest> manifest = check_checkpoint(folder, verify);
  if (!manifest) {
    const Error& e = manifest.error();
    throw Error(ErrorCode::data,
                fmt::format("checkpoint {} is incomplete ({})", folder.string(), e.message()),
                e.hint());
  }
  return std::move(manifest).value();
}

/// The manifest's safetensors files in `subfolder` ("" for the top).
StoredTensors open_tensors(const fs::path& folder, const Manifest& manifest,
                           std::initializer_list<std::string_view> subfolders) {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  for (const FileRecord& record : manifest.files) {
    const fs::path path(record.path);
    if (path.extension() != ".safetensors") continue;
    for (const std::string_view subfolder : subfolders) {
      if (path.parent_path() == subfolder) {
        files.push_back(std::make_shared<SafetensorsFile>(folder / path));
      }
    }
  }
  return StoredTensors(files);
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& folder, Verify verify)
    : path_(folder),
      manifest_(whole_manifest(folder, verify)),
      weights_(open_tensors(folder, manifest_, {"", "weights"})),
      optimizer_(open_tensors(folder, manifest_, {"optimizer"})) {}

std::vector<std::string> CheckpointReader::names(std::string_view kind) const {
  if (kind == kWeightsKind) return {weights_.names().begin(), weights_.names().end()};
  std::vector<std::string> names;
  const std::string prefix = state_key(kind, "");
  for (const std::string& key : optimizer_.names()) {
    if (key.starts_with(prefix)) names.push_back(key.substr(prefix.size()));
  }
  return names;
}

std::optional<Shape> CheckpointReader::shape(std::string_view kind, std::string_view name) const {
  const StoredTensors& stored = kind == kWeightsKind ? weights_ : optimizer_;
  const std::string key = state_key(kind, name);
  return stored.contains(key) ? std::optional(stored.shape(key)) : std::nullopt;
}

void CheckpointReader::read(std::string_view kind, std::string_view name,
                            std::span<const std::int64_t> begin, std::span<const std::int64_t> end,
                            const Tensor& out) const {
  const StoredTensors& stored = kind == kWeightsKind ? weights_ : optimizer_;
  stored.read_slice(state_key(kind, name), begin, end, out);
}

std::optional<CheckpointReader> open_latest(const fs::path& root, std::int64_t last) {
  const auto path = find_latest(root, Verify::checksums, last);
  if (!path) return std::nullopt;
  return CheckpointReader(*path, Verify::sizes);  // the checksums were just compared
}

}  // namespace heddle
