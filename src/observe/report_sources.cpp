#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

constexpr std::size_t kStrokes = 6;  // of the style sheet; the last is that of all further sources

std::string stroke(std::size_t source) {
  return fmt::format("source-{}", std::min(source, kStrokes - 1));
}

}  // namespace

Chart sources_chart(const History& history) {
  Chart chart{.id = "sources",
              .description = "Held-out loss of each source over steps",
              .height = 220,
              .series = {}};
  for (const auto& [name, curve] : history.eval_sources) {
    chart.series.push_back({name, stroke(chart.series.size()), curve});
  }
  return chart;
}

std::string sources_section(const History& history, const Chart& chart) {
  if (history.eval_sources.empty()) return "";
  std::string html =
      "<section id=\"by-source\"><h2>Held-out loss by source</h2><p class=\"say\">Nats per token "
      "of the text that was kept back of each source; behind its name what it reached.</p>"
      "<ul class=\"legend\">";
  std::size_t source = 0;
  for (const auto& [name, curve] : history.eval_sources) {
    const double loss = last_finite(curve);
    put(html, "<li><i class=\"{}\"></i>{} <b>{}</b></li>", stroke(source++), escape_html(name),
        std::isfinite(loss) ? fmt::format("{:.3f}", loss) : std::string("not finite"));
  }
  put(html, "</ul>{}</section>\n", render_chart(chart));
  return html;
}

}  // namespace heddle::observe
