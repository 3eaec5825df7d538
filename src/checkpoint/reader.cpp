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

std::optional<CheckpointReader> open_latest(const fs::path& root) {
  const auto path = find_latest(root, Verify::checksums);
  if (!path) return std::nullopt;
  return CheckpointReader(*path, Verify::sizes);  // the checksums were just compared
}

}  // namespace heddle
