#include "observe/trace.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "base/json_value.h"

namespace heddle::observe {
namespace {

JsonValue metadata(const char* what, int rank, int stream, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", stream}, {"args", {{"name", name}}}};
}

// An event of a trace file; its accessors throw Error(data) that names file, event and member.
class Event {
 public:
  Event(const Json& json, const std::string& file, std::size_t index)
      : json_(json), file_(file), index_(index) {
    if (!json.is_object()) fail("is not an object");
  }

  bool is(const char* phase) const {
    const auto found = json_.find("ph");
    return found != json_.end() && *found == phase;
  }
  std::string text(const char* member) const {
    const auto found = json_.find(member);
    if (found == json_.end() || !found->is_string()) fail(fmt::format("has no text '{}'", member));
    return found->get<std::string>();
  }
  double number(const char* member) const {
    const auto found = json_.find(member);
    if (found == json_.end() || !found->is_number()) {
      fail(fmt::format("has no number '{}'", member));
    }
    return found->get<double>();
  }
  int place(const char* member) const {
    const double value = number(member);
    if (value != std::floor(value) || value < 0 || value > std::numeric_limits<int>::max()) {
      fail(fmt::format("has '{}' = {}, which is no rank or stream", member, value));
    }
    return static_cast<int>(value);
  }
  std::uint64_t argument(const char* name) const {
    const auto args = json_.find("args");
    if (args == json_.end() || !args->is_object()) return 0;
    const auto found = args->find(name);
    return found != args->end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  }
  // The name a thread_name event gives; empty for every other event.
  std::string thread_name() const {
    if (!is("M") || text("name") != "thread_name") return "";
    const auto args = json_.find("args");
    if (args == json_.end() || !args->is_object() || !args->contains("name")) return "";
    const Json& name = (*args)["name"];
    return name.is_string() ? name.get<std::string>() : "";
  }
  Span span() const {
    const auto category = json_.find("cat");
    Span span{.name = text("name"),
              .category = category != json_.end() && category->is_string()
                              ? category->get<std::string>()
                              : "",
              .rank = place("pid"),
              .stream = place("tid"),
              .begin_seconds = number("ts") * 1e-6,
              .duration_seconds = number("dur") * 1e-6,
              .bytes = argument("bytes"),
              .step = static_cast<std::int64_t>(argument("step"))};
    if (span.duration_seconds < 0) fail("has a negative duration 'dur'");
    return span;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::data, fmt::format("{}: event {} {}", file_, index_, what),
                "a trace is what observe.trace or heddle simulate --trace writes");
  }

  const Json& json_;
  const std::string& file_;
  std::size_t index_;
};

}  // namespace

std::string Trace::json() const {
  std::set<int> ranks;
  for (const auto& span : spans_) ranks.insert(span.rank);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  auto put = [&, first = true](const JsonValue& event) mutable {
    text += first ? "\n" : ",\n";
    text += event.dump();
    first = false;
  };
  for (const int rank : ranks) {
    put(metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
  }
  for (const auto& [place, name] : stream_names_) {
    put(metadata("thread_name", place.first, place.second, name));
  }
  for (const auto& span : spans_) {
    JsonValue event = {{"ph", "X"},
                       {"name", span.name},
                       {"cat", span.category},
                       {"pid", span.rank},
                       {"tid", span.stream},
                       {"ts", span.begin_seconds * 1e6},
                       {"dur", span.duration_seconds * 1e6}};
    if (span.bytes != 0) event["args"]["bytes"] = span.bytes;
    if (span.step != 0) event["args"]["step"] = static_cast<std::uint64_t>(span.step);
    put(event);
  }
  return text + "\n]}\n";
}

void Trace::write(const std::filesystem::path& path) const {
  write_file_atomically(real_file_system(), path, json());
}

Trace read_trace(const std::filesystem::path& path) {
  return parse_trace(read_text_file(path), path.string());
}

Trace parse_trace(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  const auto events = document.is_object() ? document.find("traceEvents") : document.end();
  if (!document.is_object() || events == document.end() || !events->is_array()) {
    throw Error(ErrorCode::data, file + ": no list 'traceEvents', so this is not a trace",
                "a trace is what observe.trace or heddle simulate --trace writes");
  }
  Trace trace;
  for (std::size_t i = 0; i < events->size(); ++i) {
    const Event event((*events)[i], file, i);
    if (event.is("X")) trace.add(event.span());
    if (const std::string name = event.thread_name(); !name.empty()) {
      trace.name_stream(event.place("pid"), event.place("tid"), name);
    }
  }
  return trace;
}

}  // namespace heddle::observe
