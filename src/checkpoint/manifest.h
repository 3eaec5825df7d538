#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "checkpoint/checksum.h"

namespace heddle {

/// What a training checkpoint says about itself (docs/formats/checkpoint.md).
struct Manifest {
  static constexpr int kVersion = 2;  ///< 1, without parts of files, is read too

  std::int64_t step = 0;
  std::int64_t tokens = 0;              ///< trained on so far
  std::optional<double> eval_loss;      ///< decides which checkpoint is the best
  std::string mesh;                     ///< the mesh it was written from, for people
  std::shared_ptr<const Json> trainer;  ///< an object that only its writer understands; never null
  std::vector<FileRecord> files;        ///< all but manifest.json and COMMIT
};

std::string manifest_text(const Manifest& manifest);
/// Throws Error(data) that starts with `where`; a newer format version is refused by number.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// Records as the manifest has them, for a writer's own part of a checkpoint.
std::string records_text(const std::vector<FileRecord>& records);
std::vector<FileRecord> parse_records(std::string_view text, const std::string& where);

/// The content of COMMIT for a manifest.json of this content.
std::string commit_text(std::string_view manifest);

/// How much of a checkpoint is read to believe it: sizes of all files, or also their checksums.
enum class Verify { sizes, checksums };

/// The manifest of a whole checkpoint, or what is wrong with the folder: a missing or foreign
/// COMMIT, a damaged manifest, a missing, shorter, longer or changed file.
Result<Manifest> check_checkpoint(const std::filesystem::path& folder, Verify verify);

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCommitFile = "COMMIT";

}  // namespace heddle
