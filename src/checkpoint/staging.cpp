#include "checkpoint/staging.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/free_space.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRecords = "records";

fs::path record_file(const fs::path& staged, int writer) {
  return staged / kRecords / fmt::format("{:05}.json", writer);
}

void prepare_root(FileSystem& files, const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    files.create_directories(root);
    files.sync_directory(root.has_parent_path() ? root.parent_path() : fs::path("."));
  }
  for (const fs::path& leftover : list_leftovers(root)) files.remove_all(leftover);
}

/// Of each file the parts of all writers.
std::vector<FileRecord> joined_records(const fs::path& staged, int writers) {
  std::map<std::string, FileRecord> by_path;
  for (int writer = 0; writer < writers; ++writer) {
    const fs::path file = record_file(staged, writer);
    for (FileRecord& record : parse_records(read_text_file(file), file.string())) {
      const auto [at, is_new] = by_path.try_emplace(record.path, record);
      if (is_new) continue;
      at->second.parts.insert(at->second.parts.end(), record.parts.begin(), record.parts.end());
    }
  }
  std::vector<FileRecord> records;
  for (auto& [path, record] : by_path) records.push_back(std::move(record));
  return records;
}

/// Gives the finished folder its name. A checkpoint that has the name already is moved aside first
/// and still counts until the new one is there.
void publish(FileSystem& files, const fs::path& staged, const fs::path& target) {
  std::error_code error;
  if (fs::exists(target, error)) {
    files.rename(target, fmt::format("{}.old-{}", target.string(), ::getpid()));
  }
  files.rename(staged, target);
  files.sync_directory(target.parent_path());
}

void remove_replaced(FileSystem& files, const fs::path& root) {
  for (const CheckpointFolder& folder : list_checkpoints(root)) {
    if (folder.is_replaced) files.remove_all(folder.path);
  }
}

}  // namespace

fs::path stage_checkpoint(FileSystem& files, const fs::path& root, std::int64_t step,
                          const CheckpointLayout& layout, std::uint64_t other_bytes) {
  prepare_root(files, root);
  require_free_space(files, root, layout.size_bytes() + other_bytes);
  const fs::path staged = root / fmt::format("{}.tmp-{}", checkpoint_name(step), ::getpid());
  try {
    files.create_directories(staged / kRecords);
    for (const CheckpointLayout::File& file : layout.files()) {
      files.create_directories((staged / file.path).parent_path());
      files.create(staged / file.path)->close();
    }
  } catch (const Error&) {
    abandon_checkpoint(files, staged);
    throw;
  }
  return staged;
}

void leave_records(FileSystem& files, const fs::path& staged, int writer,
                   const std::vector<FileRecord>& records) {
  // Not synced: who commits takes them over, and without him they mean nothing.
  const auto file = files.create(record_file(staged, writer));
  const std::string text = records_text(records);
  file->append(std::as_bytes(std::span(text)));
  file->close();
}

fs::path commit_checkpoint(FileSystem& files, const fs::path& staged, Manifest manifest,
                           const std::vector<TextFile>& texts, int writers) {
  const fs::path root = staged.parent_path();
  manifest.files = joined_records(staged, writers);
  for (const FileRecord& record : manifest.files) {
    const fs::path folder = (staged / record.path).parent_path();
    if (folder != staged) files.sync_directory(folder);
  }
  std::ranges::move(write_text_files(files, staged, texts), std::back_inserter(manifest.files));
  files.remove_all(staged / kRecords);
  const std::string text = manifest_text(manifest);
  parse_manifest(text, "our own manifest");  // refuses files that were not written whole
  write_durable_file(files, staged / kManifestFile, text);
  write_durable_file(files, staged / kCommitFile, commit_text(text));
  files.sync_directory(staged);
  const fs::path target = root / checkpoint_name(manifest.step);
  publish(files, staged, target);
  remove_replaced(files, root);
  return target;
}

void abandon_checkpoint(FileSystem& files, const fs::path& staged) {
  try {
    files.remove_all(staged);
  } catch (const Error& error) {
    log_warn("{}", error.what());
  }
}

}  // namespace heddle
