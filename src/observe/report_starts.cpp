#include <fmt/format.h>

#include "base/strings.h"
#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

/// "2026-11-15T09:30:00Z" as people write it.
std::string readable(const std::string& time) {
  constexpr std::size_t kLength = 20;
  if (time.size() != kLength || time[10] != 'T' || time.back() != 'Z') return time;
  return time.substr(0, 10) + " " + time.substr(11, 8) + " UTC";
}

std::string counted(int count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string computed_by(const RunStart& start) {
  const std::string threads = counted(start.threads, "thread", "threads");
  return start.ranks == 1 ? "1 rank, " + threads
                          : fmt::format("{} ranks of {} each", start.ranks, threads);
}

void put_fact(std::string& html, const char* name, const std::string& value) {
  if (value.empty()) return;
  put(html, "<div><dt>{}</dt><dd>{}</dd></div>", name, escape_html(value));
}

}  // namespace

std::string run_facts(const RunReport& report) {
  std::string facts;
  const bool knows_beginning = !report.starts.empty() && report.starts.front().step == 0;
  if (knows_beginning) put_fact(facts, "Started", readable(report.starts.front().time));
  if (!report.starts.empty()) {
    const RunStart& last = report.starts.back();
    if (last.step > 0) {
      put_fact(facts, "Resumed",
               fmt::format("{}, at step {}", readable(last.time), format_thousands(last.step)));
    }
    put_fact(facts, "Ended", readable(report.ended));
    put_fact(facts, "Host", last.host);
    put_fact(facts, "Device", last.device);
    put_fact(facts, "Computed by", computed_by(last));
    put_fact(facts, "Program", last.version.empty() ? "" : "heddle " + last.version);
    if (!last.command.empty()) {
      put(facts, "<div class=\"wide\"><dt>Command</dt><dd><code>{}</code></dd></div>",
          escape_html(last.command));
    }
  }
  return facts.empty() ? "" : "<dl class=\"facts\">" + facts + "</dl>\n";
}

std::string starts_section(const RunReport& report) {
  if (report.starts.size() < 2) return "";
  std::string html =
      "<section id=\"starts\"><h2>Starts</h2><p class=\"say\">The run was made by several "
      "processes, each from the newest checkpoint of the one before.</p>"
      "<div class=\"scroll\"><table><tr><th>When</th><th class=\"n\">After step</th><th>Host</th>"
      "<th>Computed by</th><th>Program</th><th>Command</th></tr>";
  for (const auto& start : report.starts) {
    put(html,
        "<tr><td class=\"when\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}, {}</td><td>{}</td>"
        "<td><code>{}</code></td></tr>",
        escape_html(readable(start.time)), format_thousands(start.step), escape_html(start.host),
        computed_by(start), escape_html(start.device), escape_html(start.version),
        escape_html(start.command));
  }
  return html + "</table></div></section>\n";
}

std::vector<ChartMark> resume_marks(const RunReport& report) {
  std::vector<ChartMark> marks;
  for (const auto& resume : resumes_on_curves(report.starts)) {
    const std::string step = format_thousands(resume.step);
    if (!marks.empty() && marks.back().step == resume.step) {
      marks.back().note += ", and again " + readable(resume.time);
    } else {
      marks.push_back({.step = resume.step,
                       .label = "resumed at " + step,
                       .note = fmt::format("resumed at step {}, {}", step, readable(resume.time))});
    }
  }
  return marks;
}

}  // namespace heddle::observe
