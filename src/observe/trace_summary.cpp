#include "observe/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/strings.h"

namespace heddle::observe {
namespace {

struct Kind {
  std::string name;
  int stage = -1;
};

/// The digits at the end of `text` are taken off; -1 where there are none, or too many.
int take_number(std::string& text) {
  std::size_t begin = text.size();
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  const std::string digits = text.substr(begin);
  if (digits.empty() || digits.size() > 6) return -1;
  text.resize(begin);
  return std::stoi(digits);
}

Kind kind_of(const Span& span) {
  if (span.category != "action" && span.category != "message") return {span.name};
  std::string name = span.name;
  const int number = take_number(name);
  if (number < 0) return {span.name};
  // "F3s1": what was taken is the stage, and the micro-batch stands before the s.
  if (name.size() > 2 && name.back() == 's') {
    std::string rest = name.substr(0, name.size() - 1);
    if (take_number(rest) >= 0) return {rest, number};
  }
  return {name};
}

bool is_waiting(const std::string& kind) {
  return kind == "ra" || kind == "rg" || (!kind.empty() && kind.back() == '<');
}

/// When each step of a rank ends.
std::map<int, std::vector<double>> step_ends(const Trace& trace) {
  std::map<int, std::vector<double>> ends;
  for (const Span& span : trace.spans()) {
    auto& of_rank = ends[span.rank];
    if (span.category == "action" && span.name == "step") {
      of_rank.push_back(span.begin_seconds + span.duration_seconds);
    }
  }
  for (auto& [rank, of_rank] : ends) std::sort(of_rank.begin(), of_rank.end());
  return ends;
}

/// From the first action of any rank to the last.
struct Extent {
  double begin = INFINITY, end = -INFINITY;
  double seconds() const { return std::max(0.0, end - begin); }
};

}  // namespace

TraceSummary summarize(const Trace& trace) {
  const auto ends = step_ends(trace);
  std::size_t all = 1;
  for (const auto& [rank, of_rank] : ends) all = std::max(all, of_rank.size());
  const std::size_t first = all > 1 ? 1 : 0;
  TraceSummary summary{.steps = static_cast<int>(all - first)};
  std::map<std::tuple<int, int, std::string, int>, TraceRow> rows;
  std::map<int, TraceRank> ranks;
  std::map<std::size_t, Extent> extents;
  for (const Span& span : trace.spans()) {
    const auto& of_rank = ends.at(span.rank);
    const auto step = static_cast<std::size_t>(
        std::lower_bound(of_rank.begin(), of_rank.end(), span.begin_seconds) - of_rank.begin());
    if (step < first || step >= all) continue;
    const Kind kind = kind_of(span);
    TraceRow& row = rows[{span.rank, span.stream, kind.name, kind.stage}];
    row.kind = kind.name;
    row.stage = kind.stage;
    row.rank = span.rank;
    row.stream = span.stream;
    row.count += 1.0;
    row.seconds += span.duration_seconds;
    row.bytes += static_cast<double>(span.bytes);
    if (span.category != "action") continue;
    TraceRank& rank = ranks[span.rank];
    (is_waiting(kind.name) ? rank.waiting : rank.computing) += span.duration_seconds;
    Extent& extent = extents[step];
    extent.begin = std::min(extent.begin, span.begin_seconds);
    extent.end = std::max(extent.end, span.begin_seconds + span.duration_seconds);
  }
  const double steps = summary.steps;
  for (const auto& [step, extent] : extents) summary.step_seconds += extent.seconds() / steps;
  for (auto& [id, rank] : ranks) {
    rank.rank = id;
    rank.computing /= steps;
    rank.waiting /= steps;
    rank.idle = std::max(0.0, summary.step_seconds - rank.computing - rank.waiting);
    summary.ranks.push_back(rank);
  }
  for (auto& [key, row] : rows) {
    row.count /= steps;
    row.seconds /= steps;
    row.bytes /= steps;
    summary.rows.push_back(row);
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const TraceRow& a, const TraceRow& b) { return a.seconds > b.seconds; });
  return summary;
}

TraceComparison compare(TraceSummary measured, TraceSummary simulated) {
  TraceComparison comparison;
  const auto ranks_of = [](const TraceSummary& summary) {
    std::set<int> ranks;
    for (const TraceRow& row : summary.rows) ranks.insert(row.rank);
    return ranks;
  };
  const std::set<int> here = ranks_of(measured), there = ranks_of(simulated);
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(),
                      std::back_inserter(comparison.only_measured));
  std::set_difference(there.begin(), there.end(), here.begin(), here.end(),
                      std::back_inserter(comparison.only_simulated));
  std::map<std::tuple<int, int, std::string, int>, TraceDifference> rows;
  const auto enter = [&](const TraceSummary& from, std::optional<TraceRow> TraceDifference::*side) {
    for (const TraceRow& row : from.rows) {
      if (!here.contains(row.rank) || !there.contains(row.rank)) continue;
      rows[{row.rank, row.stream, row.kind, row.stage}].*side = row;
    }
  };
  enter(measured, &TraceDifference::measured);
  enter(simulated, &TraceDifference::simulated);
  for (const auto& [key, row] : rows) comparison.rows.push_back(row);
  std::stable_sort(comparison.rows.begin(), comparison.rows.end(),
                   [](const TraceDifference& a, const TraceDifference& b) {
                     return std::abs(a.seconds()) > std::abs(b.seconds());
                   });
  comparison.measured = std::move(measured);
  comparison.simulated = std::move(simulated);
  return comparison;
}

namespace {

std::string name_of(const TraceRow& row) {
  return row.stage < 0 ? row.kind : fmt::format("{} stage {}", row.kind, row.stage);
}

double milliseconds(double seconds) { return 1e3 * seconds; }

std::string left_out(std::size_t all, std::size_t most) {
  return all > most ? fmt::format("... and {} more\n", all - most) : "";
}

std::string list(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text = fmt::format(
      "{}",
      fmt::join(ranks.begin(),
                ranks.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, ranks.size())), ", "));
  return ranks.size() > kMost ? fmt::format("{} and {} more", text, ranks.size() - kMost) : text;
}

JsonValue row_json(const TraceRow& row) {
  return {{"kind", row.kind},       {"stage", row.stage}, {"rank", row.rank},
          {"stream", row.stream},   {"count", row.count}, {"mean_seconds", row.mean()},
          {"seconds", row.seconds}, {"bytes", row.bytes}};
}

}  // namespace

std::string to_text(const TraceSummary& summary, std::size_t most) {
  std::string text =
      fmt::format("{} steps of {:.2f} ms\n\n", summary.steps, milliseconds(summary.step_seconds));
  text += fmt::format("{:<6}{:>14}{:>14}{:>14}\n", "rank", "computing ms", "waiting ms", "idle ms");
  for (const TraceRank& rank : summary.ranks) {
    text +=
        fmt::format("{:<6}{:>14.2f}{:>14.2f}{:>14.2f}\n", rank.rank, milliseconds(rank.computing),
                    milliseconds(rank.waiting), milliseconds(rank.idle));
  }
  text += fmt::format("\n{:<24}{:>6}{:>8}{:>12}{:>14}{:>12}\n", "what", "rank", "a step", "mean ms",
                      "ms of step", "bytes");
  for (std::size_t i = 0; i < std::min(most, summary.rows.size()); ++i) {
    const TraceRow& row = summary.rows[i];
    text += fmt::format("{:<24}{:>6}{:>8.4g}{:>12.3f}{:>14.2f}{:>12}\n", name_of(row), row.rank,
                        row.count, milliseconds(row.mean()), milliseconds(row.seconds),
                        row.bytes > 0 ? format_bytes(row.bytes) : "");
  }
  return text + left_out(summary.rows.size(), most);
}

std::string to_text(const TraceComparison& comparison, std::size_t most) {
  const double measured = comparison.measured.step_seconds,
               simulated = comparison.simulated.step_seconds;
  std::string text = fmt::format("step: {:.2f} ms measured, {:.2f} ms simulated ({:+.1f} %)\n\n",
                                 milliseconds(measured), milliseconds(simulated),
                                 measured > 0 ? 100 * (simulated / measured - 1) : 0.0);
  text += fmt::format("{:<24}{:>6}{:>8}{:>14}{:>14}{:>14}\n", "what", "rank", "a step",
                      "measured ms", "simulated ms", "off, ms");
  for (std::size_t i = 0; i < std::min(most, comparison.rows.size()); ++i) {
    const TraceDifference& row = comparison.rows[i];
    const auto mean = [](const std::optional<TraceRow>& side) {
      return side ? fmt::format("{:.3f}", milliseconds(side->mean())) : std::string("not there");
    };
    text += fmt::format("{:<24}{:>6}{:>8.4g}{:>14}{:>14}{:>14.2f}\n", name_of(row.either()),
                        row.either().rank, row.either().count, mean(row.measured),
                        mean(row.simulated), milliseconds(row.seconds()));
  }
  text += left_out(comparison.rows.size(), most);
  if (!comparison.only_measured.empty()) {
    text += fmt::format("only measured: ranks {}\n", list(comparison.only_measured));
  }
  if (!comparison.only_simulated.empty()) {
    text += fmt::format("only simulated: ranks {}\n", list(comparison.only_simulated));
  }
  return text;
}

JsonValue to_json(const TraceSummary& summary) {
  JsonValue ranks = JsonValue::array(), rows = JsonValue::array();
  for (const TraceRank& rank : summary.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"computing_seconds", rank.computing},
                     {"waiting_seconds", rank.waiting},
                     {"idle_seconds", rank.idle}});
  }
  for (const TraceRow& row : summary.rows) rows.push_back(row_json(row));
  return {{"steps", summary.steps},
          {"step_seconds", summary.step_seconds},
          {"ranks", std::move(ranks)},
          {"rows", std::move(rows)}};
}

JsonValue to_json(const TraceComparison& comparison) {
  JsonValue rows = JsonValue::array();
  for (const TraceDifference& row : comparison.rows) {
    const TraceRow& either = row.either();
    const auto side = [](const std::optional<TraceRow>& one) {
      return one ? JsonValue{{"count", one->count},
                             {"mean_seconds", one->mean()},
                             {"seconds", one->seconds},
                             {"bytes", one->bytes}}
                 : JsonValue();
    };
    rows.push_back({{"kind", either.kind},
                    {"stage", either.stage},
                    {"rank", either.rank},
                    {"stream", either.stream},
                    {"measured", side(row.measured)},
                    {"simulated", side(row.simulated)},
                    {"difference_seconds", row.seconds()}});
  }
  return {{"measured_step_seconds", comparison.measured.step_seconds},
          {"simulated_step_seconds", comparison.simulated.step_seconds},
          {"rows", std::move(rows)},
          {"only_measured_ranks", comparison.only_measured},
          {"only_simulated_ranks", comparison.only_simulated}};
}

}  // namespace heddle::observe
