#include "checkpoint/writer.h"

#include <unistd.h>

#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/free_space.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_tensors.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

std::uint64_t bytes_needed(const CheckpointContent& content) {
  std::uint64_t bytes = 0;
  for (const auto* entries : {&content.weights, &content.optimizer}) {
    for (const SliceEntry& entry : *entries) bytes += entry.data.size_bytes() + entry.name.size();
  }
  for (const TextFile& companion : content.companions) bytes += companion.content.size();
  return bytes;
}

/// Puts the checkpoint's files into a folder that has not got its name yet.
class Staging {
 public:
  Staging(FileSystem& files, fs::path folder) : files_(files), folder_(std::move(folder)) {
    files_.create_directories(folder_);
  }

  /// Whole tensors in Hugging Face's form; boxes, when there are any, in weights/.
  void write_weights(const CheckpointContent& content) {
    std::vector<TensorSpec> specs;
    std::map<std::string_view, const SliceEntry*> whole;
    std::vector<const SliceEntry*> boxes;
    for (const SliceEntry& entry : content.weights) {
      if (entry.is_whole()) {
        specs.push_back(tensor_spec(entry.name, entry.data.dtype(), entry.global_shape));
        whole[entry.name] = &entry;
      } else {
        boxes.push_back(&entry);
      }
    }
    if (!whole.empty()) {
      HfFolderWriter writer(files_, folder_, std::move(specs), content.max_shard_bytes);
      for (const TensorSpec& spec : writer.order()) {
        writer.append(spec.name, whole.at(spec.name)->data);
      }
      for (FileRecord& record : writer.finish()) records_.push_back(std::move(record));
    }
    if (!boxes.empty()) write_entries("weights", "slices", boxes);
  }

  void write_companions(const std::vector<TextFile>& companions) {
    for (const TextFile& companion : companions) {
      records_.push_back(write_durable_file(files_, folder_ / companion.name, companion.content));
    }
  }

  void write_optimizer(const CheckpointContent& content) {
    std::map<std::string, std::vector<const SliceEntry*>> by_kind;
    for (const SliceEntry& entry : content.optimizer) {
      by_kind[entry.name.substr(0, entry.name.find('.'))].push_back(&entry);
    }
    for (const auto& [kind, entries] : by_kind) write_entries("optimizer", kind, entries);
  }

  /// The manifest, then COMMIT, which vouches for it: from here on the folder is whole.
  void commit(Manifest manifest) {
    for (const std::string& folder : subfolders_) files_.sync_directory(folder_ / folder);
    manifest.files = std::move(records_);
    const std::string text = manifest_text(manifest);
    write_durable_file(files_, folder_ / kManifestFile, text);
    write_durable_file(files_, folder_ / kCommitFile, commit_text(text));
    files_.sync_directory(folder_);
  }

 private:
  void write_entries(const std::string& subfolder, const std::string& stem,
                     const std::vector<const SliceEntry*>& entries) {
    if (subfolders_.insert(subfolder).second) files_.create_directories(folder_ / subfolder);
    std::vector<TensorSpec> specs;
    std::map<std::string, std::string> metadata;
    for (const SliceEntry* entry : entries) {
      const std::string key = entry->is_whole() ? entry->name : slice_key(*entry);
      if (!entry->is_whole()) {
        metadata.emplace(std::string(kSlicePrefix) + key, slice_metadata(*entry));
      }
      specs.push_back(tensor_spec(key, entry->data.dtype(), entry->data.shape()));
    }
    const std::string file = stem + ".safetensors";
    SafetensorsWriter writer(files_, folder_ / subfolder / file, specs, metadata);
    for (std::size_t i = 0; i < entries.size(); ++i) writer.append(specs[i].name, entries[i]->data);
    records_.push_back(writer.finish());
    records_.back().path = subfolder + "/" + file;
  }

  FileSystem& files_;
  fs::path folder_;
  std::set<std::string> subfolders_;
  std::vector<FileRecord> records_;
};

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

void prepare_root(FileSystem& files, const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    files.create_directories(root);
    files.sync_directory(root.has_parent_path() ? root.parent_path() : fs::path("."));
  }
  for (const fs::path& leftover : list_leftovers(root)) files.remove_all(leftover);
}

}  // namespace

fs::path write_checkpoint(FileSystem& files, const fs::path& root,
                          const CheckpointContent& content) {
  HEDDLE_CHECK(!content.trainer || content.trainer->is_object(), "trainer state is no object");
  prepare_root(files, root);
  require_free_space(files, root, bytes_needed(content));
  const fs::path target = root / checkpoint_name(content.step);
  const fs::path staged = fmt::format("{}.tmp-{}", target.string(), ::getpid());
  try {
    Staging staging(files, staged);
    staging.write_weights(content);
    staging.write_optimizer(content);
    staging.write_companions(content.companions);
    staging.commit({.step = content.step,
                    .tokens = content.tokens,
                    .eval_loss = content.eval_loss,
                    .mesh = content.mesh,
                    .trainer = content.trainer,
                    .files = {}});
  } catch (const Error& e) {
    try {  // give the space back: the next attempt may need it
      files.remove_all(staged);
    } catch (const Error& cleanup) {
      log_warn("{}", cleanup.what());
    }
    throw e.within(fmt::format("checkpoint {} was not written", checkpoint_name(content.step)));
  }
  publish(files, staged, target);
  remove_replaced(files, root);
  return target;
}

}  // namespace heddle
