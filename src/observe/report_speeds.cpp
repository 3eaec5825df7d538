#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/quantile.h"
#include "base/strings.h"
#include "observe/heatmap.h"
#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

constexpr std::size_t kSpeedColumns = 60, kRows = 32;

/// The steps at which some rank was timed, in order: between them nobody was.
std::vector<std::int64_t> timed_steps(const RunReport& report) {
  std::set<std::int64_t> steps;
  for (const auto& [rank, curve] : report.history.block_seconds) {
    for (const CurvePoint& point : curve) steps.insert(point.step);
  }
  return {steps.begin(), steps.end()};
}

/// Medians of a rank's curve over stretches of equally many of these steps; NaN where it has no
/// point.
std::vector<double> stretches(const Curve& curve, const std::vector<std::int64_t>& steps) {
  const std::size_t columns = std::min(kSpeedColumns, steps.size());
  std::vector<std::vector<double>> values(columns);
  for (const CurvePoint& point : curve) {
    const auto at = std::ranges::lower_bound(steps, point.step) - steps.begin();
    values[static_cast<std::size_t>(at) * columns / steps.size()].push_back(point.value);
  }
  std::vector<double> medians;
  for (std::vector<double>& stretch : values) {
    medians.push_back(stretch.empty() ? std::nan("") : quantile(std::move(stretch), 0.5));
  }
  return medians;
}

/// The slowest, where there are many, in the order of ranks.
std::vector<RankSpeedRow> shown(std::vector<RankSpeedRow> rows) {
  std::ranges::stable_sort(rows, std::ranges::greater{}, &RankSpeedRow::ratio);
  rows.resize(std::min(rows.size(), kRows));
  std::ranges::sort(rows, {}, &RankSpeedRow::rank);
  return rows;
}

class SpeedMap {
 public:
  explicit SpeedMap(const RunReport& report) : report_(report), steps_(timed_steps(report)) {
    for (const RankSpeedRow& row : report.speeds) {
      const auto curve = report.history.block_seconds.find(row.rank);
      if (curve != report.history.block_seconds.end()) {
        by_rank_[row.rank] = stretches(curve->second, steps_);
      }
    }
  }

  std::string render() const {
    Heatmap map{.description =
                    "What a block took each rank over what it took others with equal work, over "
                    "steps",
                .rows = {},
                .least = 0.5,
                .first = fmt::format("step {}", format_thousands(steps_.front())),
                .last = format_thousands(steps_.back())};
    for (const RankSpeedRow& row : shown(report_.speeds)) map.rows.push_back(row_of(row));
    return render_heatmap(map);
  }

 private:
  Heatmap::Row row_of(const RankSpeedRow& row) const {
    Heatmap::Row made{.name = fmt::format("rank {}", row.rank),
                      .cells = {},
                      .total = fmt::format("{:.2f}", row.ratio())};
    const auto own = by_rank_.find(row.rank);
    if (own == by_rank_.end()) return made;
    for (std::size_t column = 0; column < own->second.size(); ++column) {
      const double usual = usual_in(row, column), seconds = own->second[column];
      const bool is_known = std::isfinite(seconds) && std::isfinite(usual);
      made.cells.push_back({.value = is_known ? seconds / usual : 1.0,
                            .note = is_known ? fmt::format("{:.3g} ms, {:.2f} times the others",
                                                           1e3 * seconds, seconds / usual)
                                             : "not timed"});
    }
    return made;
  }

  /// The median of the others that do equal work.
  double usual_in(const RankSpeedRow& row, std::size_t column) const {
    std::vector<double> others;
    for (const RankSpeedRow& other : report_.speeds) {
      const auto found = by_rank_.find(other.rank);
      if (other.rank == row.rank || other.group != row.group || found == by_rank_.end()) continue;
      if (std::isfinite(found->second[column])) others.push_back(found->second[column]);
    }
    return others.empty() ? std::nan("") : quantile(std::move(others), 0.5);
  }

  const RunReport& report_;
  const std::vector<std::int64_t> steps_;
  std::map<int, std::vector<double>> by_rank_;  // medians by column
};

}  // namespace

std::string speeds_section(const RunReport& report) {
  if (report.speeds.empty()) return "";
  // Those that are alone stand behind all others.
  const auto slowest = std::ranges::max_element(
      report.speeds, {}, [](const RankSpeedRow& row) { return row.usual > 0 ? row.ratio() : 0.0; });
  const bool are_compared = slowest->usual > 0;
  std::string html = fmt::format(
      "<section id=\"speeds\"><h2>Speed by rank</h2><p class=\"say\">What a micro-batch takes a "
      "rank on one block, without waiting for others, over the median of the ranks that do equal "
      "work: above 1 it is slower than they are. {}{}</p>",
      are_compared ? fmt::format("In the whole run rank {} was the slowest, at {:.2f}.",
                                 slowest->rank, slowest->ratio())
                   : "No two ranks do equal work here, so none is compared.",
      report.speeds.size() > kRows ? fmt::format(" The {} slowest of {} are shown.", kRows,
                                                 format_thousands(std::ssize(report.speeds)))
                                   : "");
  if (are_compared && !report.history.block_seconds.empty()) html += SpeedMap(report).render();
  html +=
      "<div class=\"scroll\"><table><tr><th class=\"n\">Rank</th><th class=\"n\">Stage</th>"
      "<th class=\"n\">Blocks</th><th class=\"n\">A block</th><th class=\"n\">Of the others</th>"
      "</tr>";
  for (const RankSpeedRow& row : shown(report.speeds)) {
    put(html,
        "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{:.3g} ms</td><td class=\"n\">{}</td></tr>",
        row.rank, row.stage, row.blocks, 1e3 * row.seconds,
        row.usual > 0 ? fmt::format("{:.2f}", row.ratio()) : "");
  }
  return html + "</table></div></section>\n";
}

}  // namespace heddle::observe
