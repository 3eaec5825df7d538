#include "observe/trace.h"

#include <fmt/format.h>

#include <set>

#include "base/file_system.h"
#include "base/json_value.h"

namespace heddle::observe {
namespace {

std::string dump(const JsonValue& event) { return event.dump(); }

JsonValue metadata(const char* what, int rank, int stream, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", stream}, {"args", {{"name", name}}}};
}

}  // namespace

std::string Trace::json() const {
  std::set<int> ranks;
  for (const auto& span : spans_) ranks.insert(span.rank);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  auto put = [&, first = true](const JsonValue& event) mutable {
    text += first ? "\n" : ",\n";
    text += dump(event);
    first = false;
  };
  for (const int rank : ranks) {
    put(metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
  }
  for (const auto& [place, name] : stream_names_) {
    put(metadata("thread_name", place.first, place.second, name));
  }
  for (const auto& span : spans_) {
    put({{"ph", "X"},
         {"name", span.name},
         {"cat", span.category},
         {"pid", span.rank},
         {"tid", span.stream},
         {"ts", span.begin_seconds * 1e6},
         {"dur", span.duration_seconds * 1e6}});
  }
  return text + "\n]}\n";
}

void Trace::write(const std::filesystem::path& path) const {
  write_file_atomically(real_file_system(), path, json());
}

}  // namespace heddle::observe
