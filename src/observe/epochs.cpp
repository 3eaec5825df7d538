#include "observe/epochs.h"

#include <optional>
#include <sstream>

#include "base/file_system.h"
#include "base/json.h"

namespace heddle::observe {
namespace {

std::optional<EpochRow> parse_epoch(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  try {
    const Json& seconds = object.at("seconds");
    return EpochRow{.number = object.at("epoch").get<std::uint64_t>(),
                    .step = object.at("step").get<std::int64_t>(),
                    .time = object.at("time").get<std::string>(),
                    .members = object.at("members").get<int>(),
                    .spares = object.at("spares").get<int>(),
                    .mesh = object.at("mesh").get<std::string>(),
                    .cause = object.at("cause").get<std::string>(),
                    .source = object.at("source").get<std::string>(),
                    .detect = seconds.at("detect").get<double>(),
                    .agree = seconds.at("agree").get<double>(),
                    .rebuild = seconds.at("rebuild").get<double>(),
                    .restore = seconds.at("restore").get<double>(),
                    .redo = seconds.at("redo").get<double>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

JsonValue to_json(const EpochRow& epoch) {
  return {{"epoch", epoch.number},
          {"step", epoch.step},
          {"time", epoch.time},
          {"members", epoch.members},
          {"spares", epoch.spares},
          {"mesh", epoch.mesh},
          {"cause", epoch.cause},
          {"source", epoch.source},
          {"seconds",
           {{"detect", epoch.detect},
            {"agree", epoch.agree},
            {"rebuild", epoch.rebuild},
            {"restore", epoch.restore},
            {"redo", epoch.redo}}}};
}

void record_epoch(const std::filesystem::path& file, const EpochRow& epoch) {
  std::string lines;
  const bool is_beginning = epoch.number == 0 && epoch.step == 0;
  if (!is_beginning && std::filesystem::exists(file)) lines = read_text_file(file);
  lines += to_json(epoch).dump() + "\n";
  write_file_atomically(real_file_system(), file, lines);
}

std::vector<EpochRow> read_epochs(const std::filesystem::path& file) {
  std::vector<EpochRow> epochs;
  if (!std::filesystem::exists(file)) return epochs;
  std::istringstream lines(read_text_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (auto epoch = parse_epoch(line)) epochs.push_back(std::move(*epoch));
  }
  return epochs;
}

}  // namespace heddle::observe
