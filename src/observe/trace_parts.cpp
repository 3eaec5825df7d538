#include "observe/trace_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"

namespace heddle::observe {
namespace {

namespace fs = std::filesystem;

/// The step in the name of a part; 0 for other files.
std::int64_t first_step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kBegin = "run-", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return 0;
  const char* begin = name.data() + kBegin.size();
  const char* end = name.data() + name.size() - kEnd.size();
  std::int64_t step = 0;
  const auto [at, error] = std::from_chars(begin, end, step);
  return error == std::errc{} && at == end ? step : 0;
}

/// In the order of steps.
std::vector<fs::path> parts_in(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::int64_t step = first_step_of(entry.path());
      if (step > 0 && entry.is_regular_file()) found.emplace_back(step, entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

/// `trace` until `last_step`, later by `seconds`.
Trace selected(const Trace& trace, std::int64_t last_step, double seconds) {
  Trace kept;
  for (Span span : trace.spans()) {
    if (span.step > last_step) continue;
    span.begin_seconds += seconds;
    kept.add(std::move(span));
  }
  for (const auto& [place, name] : trace.stream_names()) {
    kept.name_stream(place.first, place.second, name);
  }
  return kept;
}

}  // namespace

TraceParts::TraceParts(fs::path folder, std::int64_t last_step, std::uint64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes) {
  FileSystem& files = real_file_system();
  files.create_directories(folder_);
  for (const fs::path& path : parts_in(folder_)) {
    if (first_step_of(path) > last_step) {
      files.remove_all(path);
      continue;
    }
    try {
      const Trace part = read_trace(path);
      const Trace kept = selected(part, last_step, 0.0);
      for (const Span& span : kept.spans()) {
        begin_seconds_ = std::max(begin_seconds_, span.begin_seconds + span.duration_seconds);
      }
      if (kept.spans().size() < part.spans().size()) kept.write(path);
      parts_.push_back({path, fs::file_size(path)});
      bytes_ += parts_.back().bytes;
    } catch (const Error& error) {
      log_warn("a part of the trace is removed: {}", error.what());
      files.remove_all(path);
    }
  }
}

void TraceParts::add(const Trace& steps) {
  if (steps.spans().empty()) return;
  std::int64_t first = steps.spans().front().step, last = first;
  for (const Span& span : steps.spans()) {
    first = std::min(first, span.step);
    last = std::max(last, span.step);
  }
  const fs::path path = folder_ / fmt::format("run-{:06}.json", first);
  selected(steps, last, begin_seconds_).write(path);
  parts_.push_back({path, fs::file_size(path)});
  bytes_ += parts_.back().bytes;
  drop_oldest();
}

void TraceParts::drop_oldest() {
  while (limit_bytes_ > 0 && bytes_ > limit_bytes_ && parts_.size() > 1) {
    if (!std::exchange(has_dropped_, true)) {
      log_info("{} holds more than observe.trace_limit = {}: from here on its oldest parts go",
               folder_.string(), format_bytes(static_cast<double>(limit_bytes_)));
    }
    real_file_system().remove_all(parts_.front().path);
    bytes_ -= parts_.front().bytes;
    parts_.pop_front();
  }
}

Trace read_trace_parts(const fs::path& folder) {
  Trace all;
  for (const fs::path& path : parts_in(folder)) {
    const Trace part = read_trace(path);
    for (const Span& span : part.spans()) all.add(span);
    for (const auto& [place, name] : part.stream_names()) {
      all.name_stream(place.first, place.second, name);
    }
  }
  return all;
}

}  // namespace heddle::observe
