#include "observe/starts.h"

#include <algorithm>
#include <sstream>

#include "base/file_system.h"
#include "base/json.h"
#include "base/json_value.h"

namespace heddle::observe {
namespace {

std::string text_in(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

std::int64_t integer_in(const Json& object, const char* key, std::int64_t otherwise) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_integer() ? value->get<std::int64_t>()
                                                             : otherwise;
}

}  // namespace

void record_start(const std::filesystem::path& file, const RunStart& start) {
  std::string lines;
  if (start.step > 0 && std::filesystem::exists(file)) {
    lines = read_text_file(file);
    if (!lines.empty() && lines.back() != '\n') lines += '\n';
  }
  const JsonValue line = {{"step", start.step},       {"time", start.time},
                          {"host", start.host},       {"device", start.device},
                          {"ranks", start.ranks},     {"threads", start.threads},
                          {"version", start.version}, {"command", start.command}};
  lines += line.dump() + "\n";
  write_file_atomically(real_file_system(), file, lines);
}

std::vector<RunStart> read_starts(const std::filesystem::path& file) {
  std::vector<RunStart> starts;
  if (!std::filesystem::exists(file)) return starts;
  std::istringstream lines(read_text_file(file));
  for (std::string line; std::getline(lines, line);) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || integer_in(object, "step", -1) < 0) continue;
    starts.push_back({.step = integer_in(object, "step", 0),
                      .time = text_in(object, "time"),
                      .host = text_in(object, "host"),
                      .device = text_in(object, "device"),
                      .version = text_in(object, "version"),
                      .command = text_in(object, "command"),
                      .ranks = static_cast<int>(integer_in(object, "ranks", 1)),
                      .threads = static_cast<int>(integer_in(object, "threads", 1))});
  }
  return starts;
}

std::vector<RunStart> resumes_on_curves(const std::vector<RunStart>& starts) {
  std::vector<RunStart> resumes;
  for (const auto& start : starts) {
    std::erase_if(resumes, [&](const RunStart& earlier) { return earlier.step > start.step; });
    if (start.step > 0) resumes.push_back(start);
  }
  return resumes;
}

}  // namespace heddle::observe
