#include "planner/link_text.h"

#include <fmt/format.h>

#include "base/strings.h"
#include "observe/bars.h"
#include "observe/chart.h"
#include "observe/put.h"

namespace heddle::planner {
namespace {

using observe::escape_html;
using observe::put;

std::string in_seconds(double seconds) { return fmt::format("{:.4g} s", seconds); }

JsonValue row_json(const LinkRow& row) {
  const Candidate& plan = row.plan;
  JsonValue json = {{"what", row.what},
                    {"step_seconds", row.seconds},
                    {"gain", row.gain},
                    {"run_gain", row.run_gain},
                    {"sent_bytes", row.sent_bytes},
                    {"accuracy", row.accuracy},
                    {"compressed", row.job.compress.text()},
                    {"optimizer", name_of(row.job.stack.updates)},
                    {"plan", describe(plan)},
                    {"sites", plan.sites},
                    {"dp", plan.dp},
                    {"tp", plan.tp},
                    {"cp", plan.cp},
                    {"pp", plan.pp},
                    {"zero", plan.zero}};
  if (row.sites) {
    json["every"] = row.job.outer.every;
    json["fragments"] = row.job.outer.fragments;
    json["delay"] = row.job.outer.delay;
    json["utilisation"] = row.sites->utilisation;
  }
  return json;
}

}  // namespace

std::string links_text(const LinkComparison& comparison) {
  std::size_t width = 4;
  for (const LinkRow& row : comparison.rows) width = std::max(width, row.what.size());
  std::string text = fmt::format("what to send less of over {}:\n", comparison.links.text);
  text += fmt::format("  {:<{}} {:>11} {:>8} {:>11}  {}\n", "what", width, "step", "gain", "sent",
                      "accuracy; layout");
  for (const LinkRow& row : comparison.rows) {
    const bool is_taken = &row == &comparison.best();
    text += fmt::format("{} {:<{}} {:>9.4g} s {:>7.2f}x {:>11}  {}; {}\n", is_taken ? ">" : " ",
                        row.what, width, row.seconds, row.gain, format_bytes(row.sent_bytes),
                        row.accuracy, describe(row.plan));
  }
  return text + fmt::format("advice: {}\n", comparison.advice);
}

JsonValue links_json(const LinkComparison& comparison) {
  const GivenLinks& links = comparison.links;
  JsonValue json = {{"given", links.text},           {"bytes_per_second", links.bytes_per_s},
                    {"latency_seconds", nullptr},    {"loss", links.loss},
                    {"advised", comparison.advised}, {"advice", comparison.advice},
                    {"rows", JsonValue::array()}};
  if (links.latency_s) json["latency_seconds"] = *links.latency_s;
  for (const LinkRow& row : comparison.rows) json["rows"].push_back(row_json(row));
  return json;
}

std::string links_section(const LinkComparison& comparison) {
  std::string html = "<section id=\"links\"><h2>Less on the wire</h2>";
  put(html, "<p class=\"say\">Servers are joined by {}. <b>Advice: {}.</b></p>",
      escape_html(comparison.links.text), escape_html(comparison.advice));
  observe::StackedBars bars{
      .parts = {{"a step", 'a'}, {"advised", 'd'}}, .rows = {}, .format = in_seconds};
  for (const LinkRow& row : comparison.rows) {
    const bool is_taken = &row == &comparison.best();
    bars.rows.push_back({.name = row.what,
                         .note = row.accuracy,
                         .parts = {is_taken ? 0.0 : row.seconds, is_taken ? row.seconds : 0.0},
                         .total = in_seconds(row.seconds),
                         .total_note = fmt::format("{:.2f} times as fast", row.gain)});
  }
  html += render_bars(bars);
  html +=
      "<details><summary>With bytes and layouts, as a table</summary><div "
      "class=\"scroll\"><table><tr><th>What</th><th class=\"n\">Step</th><th "
      "class=\"n\">Gain</th><th class=\"n\">Sent to other servers</th><th>Layout</th></tr>";
  for (const LinkRow& row : comparison.rows) {
    put(html,
        "<tr{}><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.2f}</td><td "
        "class=\"n\">{}</td><td>{}</td></tr>",
        &row == &comparison.best() ? " class=\"chosen\"" : "", escape_html(row.what),
        in_seconds(row.seconds), row.gain, format_bytes(row.sent_bytes),
        escape_html(describe(row.plan)));
  }
  return html + "</table></div></details></section>\n";
}

}  // namespace heddle::planner
