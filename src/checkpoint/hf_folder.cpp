#include "checkpoint/hf_folder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/json_events.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Reads `{"metadata": anything, "weight_map": {"tensor": "file"}}`.
class IndexEvents : public StrictJsonEvents {
 public:
  std::map<std::string, std::string> weight_map;
  bool has_weight_map = false;

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 2 && in_map_) has_weight_map = true;
    return depth_ <= 2 || !in_map_ || unexpected("an object");
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      in_map_ = key == "weight_map";
      if (in_map_ && has_weight_map) return refuse("\"weight_map\" is there twice");
    } else if (in_map_) {
      if (weight_map.count(key) != 0) {
        return refuse(fmt::format("\"weight_map\" has tensor \"{}\" twice", key));
      }
      tensor_ = std::move(key);
    }
    return true;
  }
  bool string(string_t& value) override {
    if (in_map_) {
      if (depth_ != 2) return unexpected("a string");
      weight_map[tensor_] = std::move(value);
    }
    return true;
  }
  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool start_array(std::size_t) override { return other("an array"); }
  bool end_array() override { return true; }

 protected:
  std::string place() const override {
    return depth_ >= 1 && in_map_ ? "\"weight_map\"" : "the index";
  }

 private:
  bool other(const char* found) { return (depth_ > 0 && !in_map_) || unexpected(found); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string tensor_;
};

bool stays_inside(const fs::path& relative) {
  if (relative.empty() || relative.is_absolute()) return false;
  for (const auto& part : relative) {
    if (part == "..") return false;
  }
  return true;
}

/// A way out for a folder without weights in safetensors.
std::string what_it_has(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "pytorch_model.bin", error) ||
      fs::exists(path / "pytorch_model.bin.index.json", error)) {
    return "its weights are in pytorch_model.bin; save them as safetensors first";
  }
  if (!fs::exists(path / kAdapterConfigFile, error)) return "";
  return "it has adapters alone: name the model that they were trained on, and these with "
         "lora.path or --adapter; or merge them with heddle convert";
}

/// Of conversations with tools and the like, beside chat_template.jinja; in the order of names.
std::vector<std::string> more_chat_templates(const fs::path& folder) {
  static constexpr const char* kFolder = "additional_chat_templates";
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / kFolder, error)) {
    if (entry.path().extension() != ".jinja") continue;
    names.push_back(fmt::format("{}/{}", kFolder, entry.path().filename().string()));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

HfFolder::HfFolder(const fs::path& path) : path_(path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    fail(ErrorCode::data, "{}: no such model folder or safetensors file", path.string());
  }
  if (!fs::is_directory(path, error)) {
    add_file(std::make_shared<SafetensorsFile>(path));
  } else if (fs::exists(path / kIndex, error)) {
    open_sharded(path / kIndex);
  } else if (fs::exists(path / kSingle, error)) {
    add_file(std::make_shared<SafetensorsFile>(path / kSingle));
  } else {
    throw Error(ErrorCode::data,
                fmt::format("{}: not a model folder: it has neither {} nor {}", path.string(),
                            kSingle, kIndex),
                what_it_has(path));
  }
}

bool HfFolder::has_weights(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kIndex, error) || fs::exists(folder / kSingle, error);
}

void HfFolder::open_sharded(const fs::path& index) {
  IndexEvents events;
  parse_json_events(read_text_file(index), events, index.string());
  if (!events.has_weight_map) {
    fail(ErrorCode::data, "{}: there is no \"weight_map\"", index.string());
  }
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> shards;
  for (const auto& [tensor, shard] : events.weight_map) {
    if (shards.count(shard) != 0) continue;
    if (!stays_inside(shard)) {
      fail(ErrorCode::data, "{}: tensor \"{}\" is said to be in \"{}\", outside the folder",
           index.string(), tensor, shard);
    }
    const fs::path path = index.parent_path() / shard;
    std::error_code error;
    if (!fs::exists(path, error)) {
      throw Error(ErrorCode::data,
                  fmt::format("{}: shard {} is missing", index.parent_path().string(), shard),
                  "copy or download the whole folder again");
    }
    shards[shard] = std::make_shared<SafetensorsFile>(path);
  }
  for (const auto& [name, shard] : shards) add_file(shard);
  for (const auto& [tensor, shard] : events.weight_map) {
    if (shards[shard]->find(tensor) == nullptr) {
      fail(ErrorCode::data, "{}: tensor \"{}\" is said to be in {}, but is not there",
           index.string(), tensor, shard);
    }
  }
}

void HfFolder::add_file(std::shared_ptr<const SafetensorsFile> file) {
  for (const auto& entry : file->entries()) {
    const auto [at, is_new] = by_name_.emplace(entry.name, files_.size());
    if (!is_new) {
      fail(ErrorCode::data, "{}: tensor \"{}\" is in {} and in {}", path_.string(), entry.name,
           files_[at->second]->path().filename().string(), file->path().filename().string());
    }
    names_.push_back(entry.name);
  }
  files_.push_back(std::move(file));
}

const SafetensorsFile& HfFolder::file_of(std::string_view name) const {
  if (const auto at = by_name_.find(name); at != by_name_.end()) return *files_[at->second];
  const std::string nearest = nearest_word(name, names_);
  throw Error(ErrorCode::data, fmt::format("{}: there is no tensor \"{}\"", path_.string(), name),
              nearest.empty() ? "" : fmt::format("the nearest name is \"{}\"", nearest));
}

std::uint64_t HfFolder::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : files_) {
    for (const auto& entry : file->entries()) bytes += entry.end - entry.begin;
  }
  return bytes;
}

const TextFile* find_file(const std::vector<TextFile>& files, const std::string& name) {
  const auto at = std::ranges::find(files, name, &TextFile::name);
  return at == files.end() ? nullptr : &*at;
}

void put_file(std::vector<TextFile>& files, TextFile file) {
  std::erase_if(files, [&](const TextFile& other) { return other.name == file.name; });
  files.push_back(std::move(file));
}

std::vector<TextFile> read_companions(const fs::path& folder) {
  static constexpr std::array kNames = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja"};
  std::vector<std::string> names(kNames.begin(), kNames.end());
  std::ranges::copy(more_chat_templates(folder), std::back_inserter(names));
  std::vector<TextFile> companions;
  std::error_code error;
  for (const std::string& name : names) {
    if (fs::is_regular_file(folder / name, error)) {
      companions.push_back({name, read_text_file(folder / name)});
    }
  }
  return companions;
}

std::vector<FileRecord> write_text_files(FileSystem& files, const fs::path& folder,
                                         const std::vector<TextFile>& texts) {
  std::vector<FileRecord> records;
  std::set<fs::path> below;
  for (const TextFile& text : texts) {
    const fs::path path = folder / text.name;
    if (path.parent_path() != folder && below.insert(path.parent_path()).second) {
      files.create_directories(path.parent_path());
    }
    records.push_back(write_durable_file(files, path, text.content));
    records.back().path = text.name;
  }
  for (const fs::path& subfolder : below) files.sync_directory(subfolder);
  return records;
}

}  // namespace heddle
