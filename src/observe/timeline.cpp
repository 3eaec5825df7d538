#include "observe/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "base/json_value.h"
#include "base/strings.h"
#include "observe/chart.h"
#include "observe/ticks.h"

namespace heddle::observe {
namespace {

// All lengths are in units of the view box.
constexpr double kLeft = 58.0, kWidth = 1000.0, kRight = 8.0;
constexpr double kTop = 30.0, kAxis = 30.0;
constexpr double kDigit = 6.1;       // width of a character in a bar
constexpr double kVisible = 2.0;     // narrower bars share a column
constexpr double kLegendStep = 104;  // between entries of the legend
constexpr double kTicks = 1e7;       // to which the times of a figure's data are rounded

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

bool is_drawn(const TimelineBar& bar) {
  return style_of(bar.kind) != nullptr && bar.end > bar.begin;
}

/// Where the rows of ranks lie. Many ranks have lower rows.
struct Rows {
  int ranks = 0, lines = 1;
  double bar = 20.0, thin = 5.0, pitch = 25.0;

  double top_of(int rank) const { return kTop + rank * pitch; }
  double top_of(const TimelineBar& drawn) const {
    return top_of(drawn.rank) + (drawn.line > 0 ? bar + 1.0 + (drawn.line - 1) * thin : 0.0);
  }
  double height_of(const TimelineBar& drawn) const { return drawn.line > 0 ? thin - 1.0 : bar; }
  double bottom() const { return top_of(ranks); }
  /// Of how many ranks one has room for its name.
  int named() const { return static_cast<int>(std::ceil(12.0 / pitch)); }
};

Rows rows_of(const Timeline& timeline) {
  Rows rows;
  for (const auto& bar : timeline.bars) {
    rows.ranks = std::max(rows.ranks, bar.rank + 1);
    rows.lines = std::max(rows.lines, bar.line + 1);
  }
  constexpr int kHigh = 16;
  if (rows.ranks > kHigh) {
    rows.bar = std::max(6.0, std::round(20.0 * kHigh / rows.ranks));
    rows.thin = 3.0;
  }
  rows.pitch = rows.bar + (rows.lines - 1) * rows.thin + std::max(2.0, rows.bar / 4);
  return rows;
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
  std::map<std::array<long, 3>, TimelineBar> columns;  // by rank and line
  for (const auto& bar : timeline.bars) {
    if (!is_drawn(bar)) continue;
    if ((bar.end - bar.begin) * scale >= kVisible) {
      bars.push_back(bar);
      continue;
    }
    const long column = std::lround((bar.begin + bar.end) / 2 * scale / kVisible - 0.5);
    const auto [longest, is_first] = columns.try_emplace({bar.rank, bar.line, column}, bar);
    if (bar.end - bar.begin > longest->second.end - longest->second.begin) longest->second = bar;
  }
  for (auto& [where, bar] : columns) {
    bar.label.clear();
    bar.begin = static_cast<double>(where[2]) * kVisible / scale;
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

std::string bar_svg(const TimelineBar& bar, const Rows& rows, double scale) {
  const double x = kLeft + bar.begin * scale, y = rows.top_of(bar);
  const double gap = bar.label.empty() ? 0.0 : 0.6;
  const double width = (bar.end - bar.begin) * scale - gap;
  std::string svg = fmt::format(
      "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
      "rx=\"1.5\">",
      style_of(bar.kind)->css, bar.part > 0 ? " later" : "", x, y, width, rows.height_of(bar));
  if (!bar.label.empty()) {
    svg += fmt::format("<title>{}{}: {:.6g} to {:.6g}{}</title>", escape_html(bar.label),
                       bar.part > 0 ? fmt::format(" of part {}", bar.part + 1) : "", bar.begin,
                       bar.end, bar.bytes > 0 ? ", " + format_bytes(bar.bytes) : "");
  }
  svg += "</rect>\n";
  constexpr double kReadable = 14.0;
  if (rows.height_of(bar) < kReadable) return svg;
  if (const std::string text = text_inside(bar, width); !text.empty()) {
    svg += fmt::format("<text class=\"in\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", x + width / 2,
                       y + rows.bar / 2 + 3.5, escape_html(text));
  }
  return svg;
}

std::vector<const KindStyle*> kinds_in(const Timeline& timeline) {
  std::set<TimelineKind> used;
  for (const auto& bar : timeline.bars) {
    if (is_drawn(bar)) used.insert(bar.kind);
  }
  std::vector<const KindStyle*> styles;
  for (const auto& style : kKinds) {
    if (used.contains(style.kind)) styles.push_back(&style);
  }
  return styles;
}

std::string legend(const Timeline& timeline) {
  std::string svg;
  double x = kLeft;
  for (const KindStyle* style : kinds_in(timeline)) {
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.0f}\" y=\"6\" width=\"10\" height=\"10\" rx=\"2\"/>"
        "<text x=\"{:.0f}\" y=\"15\">{}</text>\n",
        style->css, x, x + 15, style->name);
    x += kLegendStep;
  }
  return svg;
}

std::string axis(double end, double scale, double bottom, const std::string& unit) {
  const auto ticks = nice_ticks(0.0, end, 8);
  const auto labels = tick_labels(ticks);
  std::string svg;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double x = kLeft + ticks[i] * scale;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.0f}\"{6}>{4}{5}</text>\n",
        x, bottom, bottom + 4, bottom + 16, labels[i], unit.empty() ? "" : " " + escape_html(unit),
        x > kWidth - 30 ? " style=\"text-anchor:end\"" : "");  // there is no room behind it
  }
  return svg;
}

std::string timeline_svg(const Timeline& timeline, const std::string& legend) {
  const Rows rows = rows_of(timeline);
  const double end = end_of(timeline);
  const double inner = kWidth - kLeft - kRight;
  const double scale = end > 0.0 ? inner / end : 0.0;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" width=\"100%\" "
      "viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}\n{}<g class=\"rows\">",
      kWidth, rows.bottom() + kAxis, escape_html(timeline.description), kStyle, legend);
  for (int rank = 0; rank < rows.ranks; ++rank) {
    const double y = rows.top_of(rank);
    if (rank % rows.named() == 0) {
      svg += fmt::format("<text class=\"rank\" x=\"{:.0f}\" y=\"{:.1f}\">rank {}</text>", kLeft - 8,
                         y + rows.bar / 2 + 4, rank * timeline.every);
    }
    svg += fmt::format(
        "<rect class=\"track\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n",
        kLeft, y, inner, rows.bar);
  }
  for (const auto& bar : visible_bars(timeline, scale)) svg += bar_svg(bar, rows, scale);
  return svg + axis(end, scale, rows.bottom(), timeline.unit) + "</g></svg>\n";
}

/// The place of a value in a table that grows.
template <class Value>
std::size_t index_in(std::map<Value, std::size_t>& table, const Value& value) {
  return table.try_emplace(value, table.size()).first->second;
}

template <class Value>
JsonValue table_json(const std::map<Value, std::size_t>& table) {
  std::vector<Value> values(table.size());
  for (const auto& [value, index] : table) values[index] = value;
  return values;
}

/// What the script draws from: times in ticks of the whole, rows of (kind, part, label, idle ticks
/// before, ticks, bytes), labels and bytes as places in tables.
std::string figure_data(const Timeline& timeline) {
  const Rows rows = rows_of(timeline);
  const double end = end_of(timeline), tick = end > 0.0 ? end / kTicks : 1.0;
  std::map<std::pair<int, int>, std::vector<const TimelineBar*>> by_row;
  for (const auto& bar : timeline.bars) {
    if (is_drawn(bar)) by_row[{bar.rank, bar.line}].push_back(&bar);
  }
  std::map<std::string, std::size_t> labels;
  std::map<double, std::size_t> sizes;
  std::string drawn;
  for (auto& [where, bars] : by_row) {
    std::ranges::sort(bars, {}, &TimelineBar::begin);
    fmt::format_to(std::back_inserter(drawn), "{}[{},{}", drawn.empty() ? "" : ",", where.first,
                   where.second);
    long at = 0;
    for (const TimelineBar* bar : bars) {
      const long begin = std::lround(bar->begin / tick), until = std::lround(bar->end / tick);
      fmt::format_to(std::back_inserter(drawn), ",{},{},{},{},{},{}", static_cast<int>(bar->kind),
                     bar->part, index_in(labels, bar->label), begin - at, until - begin,
                     index_in(sizes, bar->bytes));
      at = until;
    }
    drawn += "]";
  }
  JsonValue kinds = JsonValue::array();
  for (const auto& style : kKinds) kinds.push_back(style.css);
  JsonValue head = {{"left", kLeft},
                    {"right", kRight},
                    {"top", kTop},
                    {"axis", kAxis},
                    {"ranks", rows.ranks},
                    {"named", rows.named()},
                    {"every", timeline.every},
                    {"bar", rows.bar},
                    {"thin", rows.thin},
                    {"pitch", rows.pitch},
                    {"tick", tick},
                    {"ticks", kTicks},
                    {"unit", timeline.unit},
                    {"kinds", kinds},
                    {"labels", table_json(labels)},
                    {"bytes", table_json(sizes)}};
  std::string json = head.dump();
  json.insert(json.size() - 1, ",\"rows\":[" + drawn + "]");
  return in_script(json);
}

}  // namespace

std::string render_timeline(const Timeline& timeline) {
  return timeline_svg(timeline, legend(timeline));
}

std::string timeline_figure(const Timeline& timeline) {
  std::string html = "<figure class=\"timeline-figure\"><div class=\"tools\"><ul class=\"legend\">";
  for (const KindStyle* style : kinds_in(timeline)) {
    html += fmt::format("<li><i class=\"tl-{}\"></i>{}</li>", style->css, style->name);
  }
  html +=
      "</ul><span class=\"buttons\" hidden><button data-do=\"in\" title=\"Zoom in\">+</button>"
      "<button data-do=\"out\" title=\"Zoom out\">\xE2\x88\x92</button>"
      "<button data-do=\"all\" title=\"The whole step\">All</button></span></div>"
      "<div class=\"view\" tabindex=\"0\">";
  return html + timeline_svg(timeline, "") +
         "<div class=\"tip\"></div></div><figcaption hidden>Drag to move; Ctrl and wheel, or a "
         "click "
         "and the wheel, to zoom; double-click for the whole step.</figcaption>"
         "<script type=\"application/json\">" +
         figure_data(timeline) + "</script></figure>\n";
}

}  // namespace heddle::observe
