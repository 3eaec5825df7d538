#include "cli/measured_speeds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"

namespace heddle::cli {
namespace {

constexpr int kMostStages = 1 << 20;

MeasuredSpeeds::Rank rank_of(const Json& row, const std::string& file) {
  const MeasuredSpeeds::Rank rank{.rank = row.value("rank", 0),
                                  .stage = row.at("stage"),
                                  .blocks = row.value("blocks", 0),
                                  .block_seconds = row.at("block_seconds")};
  if (rank.stage < 0 || rank.stage >= kMostStages) {
    fail(ErrorCode::data, "{} names stage {}", file, rank.stage);
  }
  return rank;
}

}  // namespace

std::vector<double> MeasuredSpeeds::by_stage() const {
  std::vector<double> seconds;
  for (const Rank& rank : measured) {
    const auto stage = static_cast<std::size_t>(rank.stage);
    seconds.resize(std::max(seconds.size(), stage + 1), 0.0);
    seconds[stage] = std::max(seconds[stage], rank.block_seconds);
  }
  return seconds;
}

const MeasuredSpeeds::Rank* MeasuredSpeeds::find(int rank) const {
  const auto at = std::ranges::find(measured, rank, &Rank::rank);
  return at == measured.end() ? nullptr : &*at;
}

MeasuredSpeeds read_speeds(const std::filesystem::path& report) {
  const std::filesystem::path file =
      std::filesystem::is_directory(report) ? report / "report.json" : report;
  const Json json = parse_json(read_text_file(file), file.string());
  MeasuredSpeeds speeds;
  try {
    const Json& starts = json.at("starts");
    if (!starts.empty()) speeds.ranks = starts.back().at("ranks");
    for (const Json& row : json.at("speeds")) {
      speeds.measured.push_back(rank_of(row, file.string()));
    }
  } catch (const Json::exception&) {
    throw Error(ErrorCode::data, fmt::format("{} is no report of a run", file.string()),
                "give the report.json of a run that has ended, or its folder");
  }
  if (speeds.ranks < 1 || speeds.measured.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{} has no speeds of ranks", file.string()),
                "they are measured in runs of several ranks on CPU");
  }
  return speeds;
}

}  // namespace heddle::cli
