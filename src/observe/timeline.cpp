#include "observe/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "observe/chart.h"

namespace heddle::observe {
namespace {

// All lengths are in units of the view box.
constexpr double kLeft = 58.0, kWidth = 1000.0, kRight = 8.0;
constexpr double kTop = 30.0, kBar = 20.0, kRow = 25.0, kAxis = 30.0;
constexpr double kDigit = 6.1;       // width of a character in a bar
constexpr double kVisible = 2.0;     // narrower bars share a column
constexpr double kLegendStep = 104;  // between entries of the legend

constexpr const char* kStyle = R"css(<style>
.timeline{--tl-ink:#1c1e21;--tl-soft:#63676e;--tl-track:#eceae4;--tl-f:#24588f;--tl-b:#c4561b;--tl-w:#3f7d58;--tl-v:#7a4b94;--tl-c:#8b8e94;--tl-on:#fff;
font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;font-variant-numeric:tabular-nums}
@media (prefers-color-scheme:dark){.timeline{--tl-ink:#e9e7e2;--tl-soft:#9a9da3;--tl-track:#24272b;--tl-f:#7db2ec;--tl-b:#f0975c;--tl-w:#7cc096;--tl-v:#c79be0;--tl-c:#6d7178;--tl-on:#141618}}
.timeline text{fill:var(--tl-soft)}.timeline .track{fill:var(--tl-track)}
.timeline .f{fill:var(--tl-f)}.timeline .b{fill:var(--tl-b)}.timeline .w{fill:var(--tl-w)}.timeline .v{fill:var(--tl-v)}.timeline .c{fill:var(--tl-c)}
.timeline .later{fill-opacity:.62}.timeline text.in{fill:var(--tl-on);text-anchor:middle;font-size:10px;pointer-events:none}
.timeline .rank{text-anchor:end}.timeline .tick{text-anchor:middle}.timeline line{stroke:var(--tl-soft);stroke-opacity:.35}
</style>)css";

struct KindStyle {
  TimelineKind kind;
  const char* css;
  const char* name;
};
constexpr std::array<KindStyle, 5> kKinds = {{
    {TimelineKind::forward, "f", "forward"},
    {TimelineKind::backward, "b", "backward"},
    {TimelineKind::weights, "w", "weights"},
    {TimelineKind::vocabulary, "v", "vocabulary"},
    {TimelineKind::communication, "c", "communication"},
}};

/// Waiting is drawn as the empty track.
const KindStyle* style_of(TimelineKind kind) {
  const auto found = std::ranges::find(kKinds, kind, &KindStyle::kind);
  return found == kKinds.end() ? nullptr : &*found;
}

int rank_count(const Timeline& timeline) {
  int ranks = 0;
  for (const auto& bar : timeline.bars) ranks = std::max(ranks, bar.rank + 1);
  return ranks;
}

double end_of(const Timeline& timeline) {
  double end = timeline.until;
  for (const auto& bar : timeline.bars) end = std::max(end, bar.end);
  return end;
}

/// What is drawn: wide bars as they are; of the narrow ones the longest in each column of
/// kVisible, without its label.
std::vector<TimelineBar> visible_bars(const Timeline& timeline, double scale) {
  std::vector<TimelineBar> bars;
  std::map<std::pair<int, long>, TimelineBar> columns;  // by rank
  for (const auto& bar : timeline.bars) {
    if (style_of(bar.kind) == nullptr || bar.end <= bar.begin) continue;
    if ((bar.end - bar.begin) * scale >= kVisible) {
      bars.push_back(bar);
      continue;
    }
    const long column = std::lround((bar.begin + bar.end) / 2 * scale / kVisible - 0.5);
    const auto [longest, is_first] = columns.try_emplace({bar.rank, column}, bar);
    if (bar.end - bar.begin > longest->second.end - longest->second.begin) longest->second = bar;
  }
  for (auto& [where, bar] : columns) {
    bar.label.clear();
    bar.begin = static_cast<double>(where.second) * kVisible / scale;
    bar.end = bar.begin + kVisible / scale;
    bars.push_back(bar);
  }
  return bars;
}

/// The label, or its number alone (the colour says the rest), or nothing: what there is room for.
std::string text_inside(const TimelineBar& bar, double width) {
  const auto fits = [=](const std::string& text) {
    return static_cast<double>(text.size()) * kDigit < width;
  };
  if (fits(bar.label)) return bar.label;
  const std::size_t digit = bar.label.find_first_of("0123456789");
  const std::string number = digit == std::string::npos ? "" : bar.label.substr(digit);
  return fits(number) ? number : "";
}

std::string bar_svg(const TimelineBar& bar, double scale) {
  const double x = kLeft + bar.begin * scale, y = kTop + bar.rank * kRow;
  const double gap = bar.label.empty() ? 0.0 : 0.6;
  const double width = (bar.end - bar.begin) * scale - gap;
  std::string svg = fmt::format(
      "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
      "rx=\"1.5\">",
      style_of(bar.kind)->css, bar.part > 0 ? " later" : "", x, y, width, kBar);
  if (!bar.label.empty()) {
    svg += fmt::format("<title>{}{}: {:.6g} to {:.6g}</title>", escape_html(bar.label),
                       bar.part > 0 ? fmt::format(" of part {}", bar.part + 1) : "", bar.begin,
                       bar.end);
  }
  svg += "</rect>\n";
  if (const std::string text = text_inside(bar, width); !text.empty()) {
    svg += fmt::format("<text class=\"in\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", x + width / 2,
                       y + kBar / 2 + 3.5, escape_html(text));
  }
  return svg;
}

std::string legend(const std::vector<TimelineBar>& bars) {
  std::set<TimelineKind> used;
  for (const auto& bar : bars) used.insert(bar.kind);
  std::string svg;
  double x = kLeft;
  for (const auto& style : kKinds) {
    if (!used.contains(style.kind)) continue;
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.0f}\" y=\"6\" width=\"10\" height=\"10\" rx=\"2\"/>"
        "<text x=\"{:.0f}\" y=\"15\">{}</text>\n",
        style.css, x, x + 15, style.name);
    x += kLegendStep;
  }
  return svg;
}

std::string axis(double end, double scale, double bottom, const std::string& unit) {
  const Ticks ticks = nice_ticks(0.0, end, 8);
  std::string svg;
  for (const double value : ticks.values) {
    const double x = kLeft + value * scale;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.0f}\">{4}{5}</text>\n",
        x, bottom, bottom + 4, bottom + 16, format_tick(value, ticks.spacing),
        unit.empty() ? "" : " " + escape_html(unit));
  }
  return svg;
}

/// A bar in `width` characters, the last of them a space: "F0 ", "BW0-- ".
std::string cell(const TimelineBar& bar, std::size_t width) {
  std::string text = bar.label;
  if (bar.part > 0) {
    std::ranges::transform(text, text.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  text.resize(width - 1, '-');
  return text + " ";
}

}  // namespace

std::string render_timeline(const Timeline& timeline) {
  const int ranks = rank_count(timeline);
  const double end = end_of(timeline);
  const double inner = kWidth - kLeft - kRight;
  const double scale = end > 0.0 ? inner / end : 0.0;
  const double bottom = kTop + ranks * kRow;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" width=\"100%\" "
      "viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}\n",
      kWidth, bottom + kAxis, escape_html(timeline.description), kStyle);
  for (int rank = 0; rank < ranks; ++rank) {
    const double y = kTop + rank * kRow;
    svg += fmt::format(
        "<text class=\"rank\" x=\"{:.0f}\" y=\"{:.1f}\">rank {}</text>"
        "<rect class=\"track\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n",
        kLeft - 8, y + kBar / 2 + 4, rank, kLeft, y, inner, kBar);
  }
  const auto bars = visible_bars(timeline, scale);
  svg += legend(bars);
  for (const auto& bar : bars) svg += bar_svg(bar, scale);
  return svg + axis(end, scale, bottom, timeline.unit) + "</svg>\n";
}

std::string timeline_text(const Timeline& timeline, int columns) {
  const double end = end_of(timeline);
  const int ranks = rank_count(timeline);
  // Every bar must hold its label and a space.
  double scale = 0.0;
  for (const auto& bar : timeline.bars) {
    if (style_of(bar.kind) == nullptr || bar.end <= bar.begin) continue;
    scale = std::max(scale, static_cast<double>(bar.label.size() + 1) / (bar.end - bar.begin));
  }
  const std::string margin = fmt::format("rank {} |", std::max(0, ranks - 1));
  const double length = std::ceil(end * scale - 1e-9);
  if (scale <= 0.0 || static_cast<double>(margin.size()) + length > columns) return {};

  std::vector<std::string> lines(static_cast<std::size_t>(ranks),
                                 std::string(static_cast<std::size_t>(length), '.'));
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  for (const auto& bar : timeline.bars) {
    if (style_of(bar.kind) == nullptr || bar.end <= bar.begin) continue;
    const std::size_t from = column(bar.begin), to = column(bar.end);
    lines[static_cast<std::size_t>(bar.rank)].replace(from, to - from, cell(bar, to - from));
  }
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("{:<{}}|{}\n", fmt::format("rank {}", rank), margin.size() - 1,
                        lines[static_cast<std::size_t>(rank)]);
  }
  return text;
}

}  // namespace heddle::observe
