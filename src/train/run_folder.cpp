#include "train/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/catalog.h"
#include "config/load.h"
#include "config/schema.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFile = "run.toml";
constexpr std::string_view kMark = "# The resolved run file, written by heddle when a run starts";

/// What a run writes at the top of its folder, but for events.
constexpr std::array kFiles = {"metrics.jsonl", "starts.jsonl", "epochs.jsonl", "report.json",
                               "report.html"};

fs::path checkpoints_of(const fs::path& folder) { return folder / "checkpoints"; }

/// Whether heddle wrote this run file. Before there was a mark, a resolved one could be told by all
/// sections being there with nearly all keys, and nothing that a person adds.
bool is_resolved(const std::string& text) {
  if (text.starts_with(kMark)) return true;
  if (text.find('#') != std::string::npos) return false;
  for (const config::Section& section : config::sections()) {
    if (text.find(fmt::format("[{}]\n", section.name)) == std::string::npos) return false;
  }
  constexpr std::ptrdiff_t kFewestKeys = 45;
  return std::ranges::count(text, '=') >= kFewestKeys;
}

bool has_own_checkpoint(const fs::path& folder) {
  return std::ranges::any_of(list_checkpoints(checkpoints_of(folder)), [](const auto& checkpoint) {
    return is_own_checkpoint(checkpoint.path);
  });
}

/// events.out.tfevents.SECONDS.HOST, which other writers follow by process and counter.
bool is_own_event_file(const std::string& name) {
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  if (!name.starts_with(kPrefix)) return false;
  const auto parts = split(std::string_view(name).substr(kPrefix.size()), '.');
  const auto is_number = [](std::string_view text) {
    return !text.empty() &&
           std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); });
  };
  if (parts.size() < 2 || !is_number(parts[0])) return false;
  const std::size_t last = parts.size() - (parts.back() == "v2" ? 2 : 1);
  return !(last >= 3 && is_number(parts[last]) && is_number(parts[last - 1]));
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  return entries;
}

/// Removes `own` and then the folder, if nothing is left in it; otherwise says what is.
void clear(const fs::path& folder, const std::vector<fs::path>& own) {
  auto& files = real_file_system();
  for (const fs::path& path : own) files.remove_all(path);
  const auto left = entries_of(folder);
  if (left.empty()) return files.remove_all(folder);
  std::vector<std::string> names;
  for (const fs::path& path : left) names.push_back(path.filename().string());
  constexpr std::size_t kShown = 5;
  const std::size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  log_info("{} keeps what heddle did not write: {}{}", folder.string(), fmt::join(names, ", "),
           more > 0 ? fmt::format(" and {} more", more) : "");
}

std::vector<fs::path> own_checkpoints(const fs::path& root) {
  std::vector<fs::path> own = list_leftovers(root);
  for (const CheckpointFolder& checkpoint : list_checkpoints(root)) {
    if (!is_own_checkpoint(checkpoint.path)) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} has the name of a checkpoint, but heddle did not write it",
                              checkpoint.path.string()),
                  "move it away, or set another run.dir");
    }
    own.push_back(checkpoint.path);
  }
  return own;
}

std::vector<fs::path> own_traces(const fs::path& folder) {
  std::vector<fs::path> own;
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with("run.") || name.starts_with("run-")) own.push_back(path);
  }
  return own;
}

}  // namespace

void check_run_folder(const fs::path& folder) {
  const fs::path run_file = folder / kRunFile;
  std::error_code error;
  if (fs::exists(run_file, error)) {
    if (is_resolved(read_text_file(run_file))) return;
    throw Error(ErrorCode::usage,
                fmt::format("the run folder {} holds a run.toml that heddle did not write; the "
                            "resolved run file would replace it",
                            folder.string()),
                "set run.dir to another folder");
  }
  if (has_own_checkpoint(folder)) return;
  std::vector<std::string> foreign;
  for (const char* name : kFiles) {
    if (fs::exists(folder / name, error)) foreign.emplace_back(name);
  }
  if (foreign.empty()) return;
  throw Error(ErrorCode::usage,
              fmt::format("{} is not a run folder, but holds {}, which a run would overwrite",
                          folder.string(), fmt::join(foreign, ", ")),
              "set run.dir to another folder");
}

void forget_earlier_run(const fs::path& folder) {
  auto& files = real_file_system();
  const fs::path checkpoints = checkpoints_of(folder), trace = folder / "trace";
  const auto saved = own_checkpoints(checkpoints);
  if (fs::is_directory(checkpoints)) clear(checkpoints, saved);
  if (fs::is_directory(trace)) clear(trace, own_traces(trace));
  for (const char* old : kFiles) {
    files.remove_all(folder / old);
  }
  for (const fs::path& path : entries_of(folder)) {
    if (is_own_event_file(path.filename().string())) files.remove_all(path);
  }
}

void write_resolved_run_file(const fs::path& folder, const config::RunConfig& config) {
  write_file_atomically(real_file_system(), folder / kRunFile,
                        fmt::format("{}\n{}", kMark, config::to_toml(config)));
}

}  // namespace heddle
