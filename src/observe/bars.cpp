#include "observe/bars.h"

#include <fmt/format.h>

#include <algorithm>

#include "observe/chart.h"
#include "observe/put.h"

namespace heddle::observe {
namespace {

constexpr std::size_t kMany = 16;  // rows from which they are low

double sum_of(const StackedBars::Row& row) {
  double sum = 0.0;
  for (const double part : row.parts) sum += std::max(0.0, part);
  return sum;
}

std::string legend(const StackedBars& bars) {
  std::string html = "<ul class=\"legend\">";
  for (std::size_t i = 0; i < bars.parts.size(); ++i) {
    const bool is_used = std::any_of(bars.rows.begin(), bars.rows.end(),
                                     [&](const auto& row) { return row.parts[i] > 0.0; });
    if (!is_used) continue;
    put(html, "<li><i class=\"part-{}\"></i>{}</li>", bars.parts[i].colour,
        escape_html(bars.parts[i].name));
  }
  if (bars.limit) put(html, "<li><i class=\"limit\"></i>{}</li>", escape_html(bars.limit_name));
  return html + "</ul>";
}

std::string small(const std::string& note) {
  return note.empty() ? "" : "<small>" + escape_html(note) + "</small>";
}

}  // namespace

std::string render_bars(const StackedBars& bars) {
  double full = bars.limit.value_or(0.0);
  for (const auto& row : bars.rows) full = std::max(full, sum_of(row));
  if (full <= 0.0) full = 1.0;
  std::string html = legend(bars);
  put(html, "<div class=\"stacks{}\">", bars.rows.size() > kMany ? " many" : "");
  for (const auto& row : bars.rows) {
    put(html, "<div class=\"row\"><div class=\"name\">{}{}</div><div class=\"stack\">",
        escape_html(row.name), small(row.note));
    for (std::size_t i = 0; i < bars.parts.size(); ++i) {
      if (row.parts[i] <= 0.0) continue;
      put(html, "<i class=\"part-{}\" style=\"width:{:.3f}%\" title=\"{}: {}\"></i>",
          bars.parts[i].colour, 100.0 * row.parts[i] / full, escape_html(bars.parts[i].name),
          escape_html(bars.format(row.parts[i])));
    }
    if (bars.limit) {
      put(html, "<i class=\"limit\" style=\"left:{:.3f}%\"></i>", 100.0 * *bars.limit / full);
    }
    put(html, "</div><div class=\"total\">{}{}</div></div>", escape_html(row.total),
        small(row.total_note));
  }
  return html + "</div>\n";
}

}  // namespace heddle::observe
