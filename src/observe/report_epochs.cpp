#include <fmt/format.h>

#include "base/strings.h"
#include "observe/bars.h"
#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

std::string seconds_text(double seconds) { return fmt::format("{:.2f} s", seconds); }

std::string lost_time(const std::vector<EpochRow>& epochs) {
  StackedBars bars{.parts = {{"noticed", 'a'},
                             {"agreed", 'b'},
                             {"set up", 'c'},
                             {"restored", 'd'},
                             {"step made again", 'f'}},
                   .format = seconds_text};
  for (const EpochRow& epoch : epochs) {
    if (epoch.cause.empty()) continue;
    bars.rows.push_back(
        {.name = fmt::format("after step {}", format_thousands(epoch.step)),
         .parts = {epoch.detect, epoch.agree, epoch.rebuild, epoch.restore, epoch.redo},
         .total = seconds_text(epoch.lost())});
  }
  return render_bars(bars);
}

}  // namespace

std::string epochs_section(const std::vector<EpochRow>& epochs) {
  if (epochs.size() < 2) return "";
  double lost = 0;
  for (const EpochRow& epoch : epochs) lost += epoch.cause.empty() ? 0 : epoch.lost();
  std::string html = fmt::format(
      "<section id=\"members\"><h2>Members</h2><p class=\"say\">Ranks were lost or came {} time{} "
      "while the run went on; it cost {} in all.</p>",
      epochs.size() - 1, epochs.size() == 2 ? "" : "s", seconds_text(lost));
  html += lost_time(epochs);
  html +=
      "<div class=\"scroll\"><table><tr><th class=\"n\">Epoch</th><th>When</th>"
      "<th class=\"n\">After step</th><th class=\"n\">Members</th><th class=\"n\">Waiting</th>"
      "<th>Mesh</th><th>Why</th><th>State</th></tr>";
  for (const EpochRow& epoch : epochs) {
    put(html,
        "<tr><td class=\"n\">{}</td><td class=\"when\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        epoch.number, escape_html(epoch.time), format_thousands(epoch.step), epoch.members,
        epoch.spares, escape_html(epoch.mesh), escape_html(epoch.cause), escape_html(epoch.source));
  }
  return html + "</table></div></section>\n";
}

}  // namespace heddle::observe
