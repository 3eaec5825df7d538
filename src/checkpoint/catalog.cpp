#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kOld = ".old-";
constexpr std::string_view kTmp = ".tmp-";

struct ParsedName {
  std::int64_t step = 0;
  std::string_view rest;  ///< after the number
};

std::optional<ParsedName> parse_name(std::string_view name) {
  if (name.rfind(kPrefix, 0) != 0) return std::nullopt;
  ParsedName parsed;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [after, error] = std::from_chars(begin, end, parsed.step);
  if (error != std::errc() || parsed.step < 0 || *begin == '-') return std::nullopt;
  parsed.rest = {after, static_cast<std::size_t>(end - after)};
  return parsed;
}

template <class F>
void for_each_folder(const fs::path& root, F f) {
  std::error_code error;
  if (!fs::is_directory(root, error)) return;
  for (const auto& item : fs::directory_iterator(root, error)) {
    if (!item.is_directory(error)) continue;
    const std::string name = item.path().filename().string();
    if (const auto parsed = parse_name(name)) f(item.path(), *parsed);
  }
  if (error) {
    fail(ErrorCode::resources, "cannot list folder {}: {}", root.string(), error.message());
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::vector<CheckpointFolder> list_checkpoints(const fs::path& root) {
  std::vector<CheckpointFolder> found;
  for_each_folder(root, [&](const fs::path& path, const ParsedName& name) {
    const bool is_replaced = name.rest.rfind(kOld, 0) == 0;
    if (name.rest.empty() || is_replaced) found.push_back({path, name.step, is_replaced});
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.step, a.is_replaced, a.path) < std::tuple(-b.step, b.is_replaced, b.path);
  });
  return found;
}

std::vector<fs::path> list_leftovers(const fs::path& root) {
  std::vector<fs::path> found;
  for_each_folder(root, [&](const fs::path& path, const ParsedName& name) {
    if (name.rest.rfind(kTmp, 0) == 0) found.push_back(path);
  });
  return found;
}

bool is_own_checkpoint(const fs::path& folder) {
  const auto has_early = [&](const char* name, std::string_view text) {
    std::array<char, 64> start{};
    std::ifstream(folder / name).read(start.data(), start.size());
    return std::string_view(start.data(), start.size()).find(text) != std::string_view::npos;
  };
  return has_early(kCommitFile, "xxh64 ") || has_early(kManifestFile, "heddle-checkpoint");
}

std::optional<fs::path> find_latest(const fs::path& root, Verify verify, std::int64_t last) {
  std::vector<std::string> rejected;
  for (const CheckpointFolder& candidate : list_checkpoints(root)) {
    if (candidate.step > last) continue;
    const std::string name = candidate.path.filename().string();
    const Result<Manifest> manifest = check_checkpoint(candidate.path, verify);
    if (manifest) {
      for (const std::string& reason : rejected) {
        log_warn("checkpoint {}; using {}", reason, name);
      }
      return candidate.path;
    }
    rejected.push_back(fmt::format("{} is incomplete ({})", name, manifest.error().message()));
  }
  if (rejected.empty()) return std::nullopt;
  throw Error(
      ErrorCode::data,
      fmt::format("no checkpoint in {} is whole: {}", root.string(), fmt::join(rejected, "; ")),
      "move the folder away or start with --fresh");
}

}  // namespace heddle
