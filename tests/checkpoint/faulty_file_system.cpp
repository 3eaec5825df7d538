#include "faulty_file_system.h"

#include <fstream>

#include "base/error.h"

namespace heddle::testing_support {
namespace fs = std::filesystem;

class FaultyFileSystem::File : public WritableFile {
 public:
  File(FaultyFileSystem& owner, fs::path path, std::ios::openmode mode)
      : owner_(owner), path_(std::move(path)), stream_(path_, std::ios::binary | mode) {
    if (!stream_) throw Error(ErrorCode::resources, "cannot open " + path_.string());
  }
  void append(std::span<const std::byte> bytes) override { write_at(size_, bytes); }
  void write_at(std::uint64_t at, std::span<const std::byte> bytes) override {
    const bool dies = owner_.dies_here();
    const auto room = static_cast<std::size_t>(
        std::min<std::uint64_t>(owner_.bytes_left_, dies ? bytes.size() / 2 : bytes.size()));
    owner_.unsynced_[path_].push_back({at, at + room});
    stream_.seekp(static_cast<std::streamoff>(at));
    stream_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(room));
    stream_.flush();
    owner_.bytes_left_ -= room;
    size_ = std::max(size_, at + room);
    if (dies) throw Killed();
    if (room < bytes.size()) {
      throw Error(ErrorCode::resources, "cannot write " + path_.string() + ": no space left");
    }
  }
  void sync() override {
    if (owner_.dies_here()) throw Killed();
    owner_.synced_bytes_[path_] = std::max(owner_.synced_bytes_[path_], size_);
    owner_.unsynced_.erase(path_);
  }
  void close() override {
    if (owner_.dies_here()) throw Killed();
    stream_.close();
  }

 private:
  FaultyFileSystem& owner_;
  fs::path path_;
  std::ofstream stream_;
  std::uint64_t size_ = 0;
};

bool FaultyFileSystem::dies_here() {
  if (is_dead_) throw Killed();
  if (calls_left_ > 0 && --calls_left_ == 0) is_dead_ = true;
  return is_dead_;
}

std::unique_ptr<WritableFile> FaultyFileSystem::create(const fs::path& path) {
  if (dies_here()) throw Killed();
  auto file = std::make_unique<File>(*this, path, std::ios::trunc | std::ios::out);
  synced_bytes_[path] = 0;
  unsynced_changes_.push_back({{}, path});
  return file;
}

std::unique_ptr<WritableFile> FaultyFileSystem::open(const fs::path& path) {
  if (dies_here()) throw Killed();
  return std::make_unique<File>(*this, path, std::ios::in | std::ios::out);
}

void FaultyFileSystem::create_directories(const fs::path& path) {
  if (dies_here()) throw Killed();
  if (fs::exists(path)) return;
  real_file_system().create_directories(path);
  unsynced_changes_.push_back({{}, path});
}

void FaultyFileSystem::rename(const fs::path& from, const fs::path& to) {
  if (dies_here()) throw Killed();
  real_file_system().rename(from, to);
  follow_rename(from, to);
  unsynced_changes_.push_back({from, to});
}

void FaultyFileSystem::remove_all(const fs::path& path) {
  const bool dies = dies_here();
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& item : fs::recursive_directory_iterator(path)) {
      if (item.is_regular_file()) files.push_back(item.path());
    }
  }
  for (std::size_t i = 0; i < files.size() / 2; ++i) fs::remove(files[i]);
  if (dies) throw Killed();
  fs::remove_all(path);
}

void FaultyFileSystem::sync_directory(const fs::path& path) {
  if (dies_here()) throw Killed();
  if (!fs::is_directory(path)) throw Error(ErrorCode::resources, "no folder " + path.string());
  std::erase_if(unsynced_changes_,
                [&](const Change& change) { return change.to.parent_path() == path; });
}

std::uint64_t FaultyFileSystem::free_bytes(const fs::path&) {
  if (dies_here()) throw Killed();
  return free_bytes_;
}

void FaultyFileSystem::follow_rename(const fs::path& from, const fs::path& to) {
  const auto moved = [&](const fs::path& path) {
    const std::string text = path.string(), prefix = from.string();
    const bool inside = text == prefix || text.rfind(prefix + "/", 0) == 0;
    return inside ? fs::path(to.string() + text.substr(prefix.size())) : path;
  };
  std::map<fs::path, std::uint64_t> files;
  for (const auto& [path, bytes] : synced_bytes_) files[moved(path)] = bytes;
  synced_bytes_ = std::move(files);
  std::map<fs::path, std::vector<Stretch>> unsynced;
  for (auto& [path, stretches] : unsynced_) unsynced[moved(path)] = std::move(stretches);
  unsynced_ = std::move(unsynced);
  for (Change& change : unsynced_changes_) change.to = moved(change.to);
}

void FaultyFileSystem::crash(Loss loss) {
  is_dead_ = true;
  if (loss == Loss::nothing) return;
  for (const auto& [path, bytes] : synced_bytes_) {
    if (fs::exists(path) && fs::file_size(path) > bytes) fs::resize_file(path, bytes);
  }
  for (const auto& [path, stretches] : unsynced_) {
    if (!fs::exists(path)) continue;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (const auto& [begin, end] : stretches) {
      const std::uint64_t last = std::min<std::uint64_t>(end, fs::file_size(path));
      file.seekp(static_cast<std::streamoff>(begin));
      for (std::uint64_t at = begin; at < last; ++at) file.put(0);
    }
  }
  if (loss == Loss::unsynced_data) return;
  while (!unsynced_changes_.empty()) {
    const Change change = unsynced_changes_.back();
    unsynced_changes_.pop_back();
    if (!fs::exists(change.to)) continue;
    if (change.from.empty()) {
      fs::remove_all(change.to);
    } else {
      fs::rename(change.to, change.from);
      follow_rename(change.to, change.from);
    }
  }
}

}  // namespace heddle::testing_support
