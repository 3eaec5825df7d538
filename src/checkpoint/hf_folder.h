#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/checksum.h"
#include "checkpoint/safetensors.h"

namespace heddle {

/// The weights of a Hugging Face model folder: `model.safetensors`, or the shards that
/// `model.safetensors.index.json` names; also a single .safetensors file. Opening checks every
/// header and that each tensor is in exactly one shard; reading is lazy. All failures are
/// Error(data) that name file and tensor.
class HfFolder {
 public:
  /// `path` is the folder or a .safetensors file.
  explicit HfFolder(const std::filesystem::path& path);
  /// Whether a folder has weights: a config.json may be there before they are, or be left behind.
  static bool has_weights(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::shared_ptr<const SafetensorsFile>> files() const { return files_; }

  /// In the order of shards and of bytes within a shard.
  std::span<const std::string> names() const { return names_; }
  bool contains(std::string_view name) const { return by_name_.count(name) != 0; }
  /// The file that holds the tensor; throws, with the nearest name as a hint, when none does.
  const SafetensorsFile& file_of(std::string_view name) const;
  const SafetensorsEntry& entry(std::string_view name) const { return file_of(name).entry(name); }
  std::uint64_t total_bytes() const;

  /// As SafetensorsFile::read and read_slice.
  void read(std::string_view name, const Tensor& out) const { file_of(name).read(name, out); }
  void read_slice(std::string_view name, std::span<const std::int64_t> begin,
                  std::span<const std::int64_t> end, const Tensor& out) const {
    file_of(name).read_slice(name, begin, end, out);
  }

 private:
  void open_sharded(const std::filesystem::path& index);
  void add_file(std::shared_ptr<const SafetensorsFile> file);

  std::filesystem::path path_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views into the files' entries
};

/// A small file that travels with the weights, such as config.json.
struct TextFile {
  std::string name;  ///< below the folder, with '/'
  std::string content;
};

/// The one of this name; null where there is none.
const TextFile* find_file(const std::vector<TextFile>& files, const std::string& name);
/// In place of one of the same name.
void put_file(std::vector<TextFile>& files, TextFile file);

/// Those of config.json, generation_config.json, the tokenizer's files and chat templates that
/// `folder` has.
std::vector<TextFile> read_companions(const std::filesystem::path& folder);
/// Into `folder`, which is there: durable but for the entries of the folder itself.
std::vector<FileRecord> write_text_files(FileSystem& files, const std::filesystem::path& folder,
                                         const std::vector<TextFile>& texts);

}  // namespace heddle
