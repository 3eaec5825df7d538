#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>

#include "base/file_system.h"
#include "base/quantile.h"
#include "base/strings.h"
#include "observe/chart.h"
#include "observe/page.h"
#include "observe/put.h"
#include "observe/report.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

std::string bytes(std::uint64_t value) { return format_bytes(static_cast<double>(value)); }

constexpr const char* kMinus = "\xE2\x88\x92";

std::string difference(std::uint64_t predicted, std::uint64_t measured) {
  if (predicted == measured) return "exact";
  if (predicted == 0) return "not predicted";
  const double ratio = static_cast<double>(measured) / static_cast<double>(predicted) - 1;
  if (std::abs(ratio) < 0.0005) return "&lt; 0.1 %";
  return fmt::format("{}{:.1f} %", ratio < 0 ? kMinus : "+", std::abs(ratio) * 100);
}

/// Whether the data needed less than is predicted of any data.
bool is_less_by_data(const CommunicationRow& row) {
  return row.is_at_most && row.counted_bytes < row.predicted_bytes &&
         row.counted_calls <= row.predicted_calls;
}

// Traffic is predicted exactly or wrongly, so the difference itself is what helps to find why.
std::string traffic_difference(const CommunicationRow& row) {
  if (row.counted_bytes != row.predicted_bytes) {
    const bool less = row.counted_bytes < row.predicted_bytes;
    return (less ? kMinus : "+") + bytes(less ? row.predicted_bytes - row.counted_bytes
                                              : row.counted_bytes - row.predicted_bytes);
  }
  if (row.counted_calls == row.predicted_calls) return "exact";
  const bool less = row.counted_calls < row.predicted_calls;
  return fmt::format(
      "{}{} calls", less ? kMinus : "+",
      less ? row.predicted_calls - row.counted_calls : row.counted_calls - row.predicted_calls);
}

double median_value(const Curve& curve) {
  std::vector<double> values;
  for (const auto& point : curve) {
    if (std::isfinite(point.value)) values.push_back(point.value);
  }
  return values.empty() ? std::nan("") : quantile(std::move(values), 0.5);
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.3f}", loss) : std::string("not finite");
}

std::string figures(const RunReport& report) {
  std::string html = "<dl class=\"figures\">";
  const double eval = last_finite(report.history.eval_loss);
  if (std::isfinite(eval)) {
    html += headline_figure("Held-out loss", loss_text(eval),
                            fmt::format("perplexity {:.4g}", std::exp(eval)));
  }
  if (report.totals.steps > 0) {
    html += headline_figure("Training loss", loss_text(report.totals.final_loss),
                            fmt::format("after {} step{}", format_thousands(report.totals.steps),
                                        report.totals.steps == 1 ? "" : "s"));
  }
  if (const auto gap = loss_gap(report); gap && gap->nats >= 0) {
    html += headline_figure("Above the best", fmt::format("{:.3f}", gap->nats),
                            gap->way ? fmt::format("nats; {} of the way", percent(*gap->way))
                                     : std::string("nats per token"));
  }
  html += headline_figure("Tokens", format_count(static_cast<double>(report.totals.tokens)),
                          fmt::format("in {}", format_duration(report.totals.seconds)));
  const double rate = median_value(report.history.tokens_per_second);
  if (std::isfinite(rate)) {
    html += headline_figure("Throughput", format_count(rate), "tokens/s, median");
  }
  if (const StepTimeRow& step = report.step_time; step.predicted && step.measured > 0) {
    html += headline_figure(
        "Step time", fmt::format("{:.3g} s", step.compared()),
        fmt::format("{}; {:.3g} s predicted", step.mean ? "mean" : "median", *step.predicted));
  }
  if (report.peak_resident_bytes > 0) {
    html += headline_figure("Peak memory", bytes(report.peak_resident_bytes), "of the process");
  }
  return html + "</dl>\n";
}

std::string warnings(const RunReport& report) {
  if (report.warnings.empty()) return {};
  std::string html = "<ul class=\"warnings\">";
  for (const auto& warning : report.warnings) put(html, "<li>{}</li>", escape_html(warning));
  return html + "</ul>\n";
}

std::vector<Chart> charts_of(const RunReport& report) {
  const History& history = report.history;
  const Chart loss = loss_chart(report);
  std::vector<Chart> charts = {
      loss,
      later_loss_chart(loss),
      {.id = "throughput",
       .description = "Tokens per second over steps",
       .height = 180,
       .series = {{"tokens/s, typical", "line", typical(history.tokens_per_second)},
                  {"this step", "raw", history.tokens_per_second}},
       .from_zero = true},
      {.id = "lr",
       .description = "Learning rate over steps",
       .height = 140,
       .series = {{"learning rate", "thin", history.lr}},
       .from_zero = true},
      {.id = "norm",
       .description = "Gradient norm over steps",
       .height = 140,
       .series = {{"typical", "thin", typical(history.grad_norm)},
                  {"this step", "raw", history.grad_norm}},
       .from_zero = true}};
  if (!history.residual.empty()) {
    charts.push_back({.id = "residual",
                      .description = "Residual of gradients over steps",
                      .height = 140,
                      .series = {{"residual", "thin", history.residual}},
                      .from_zero = true});
  }
  if (!history.site_waited.empty()) {
    Chart waited{.id = "waited",
                 .description = "Seconds waited for other sites over steps",
                 .height = 180,
                 .series = {},
                 .from_zero = true};
    constexpr std::array kStyles = {"line", "second", "thin", "raw"};
    for (const auto& [site, curve] : history.site_waited) {
      const std::size_t style = std::min(waited.series.size(), kStyles.size() - 1);
      waited.series.push_back({fmt::format("site {}", site), kStyles[style], curve});
    }
    charts.push_back(std::move(waited));
  }
  if (!history.eval_sources.empty()) charts.push_back(sources_chart(history));
  for (auto& chart : charts) chart.marks = resume_marks(report);
  return charts;
}

std::string curves_section(const RunReport& report, const std::vector<Chart>& charts) {
  if (report.history.loss.empty()) {
    return "<section id=\"curves-missing\"><h2>Loss</h2><p class=\"say\">No steps were recorded."
           "</p></section>\n";
  }
  std::string html = loss_section(report, charts[0], charts[1]);
  html += sources_section(report.history, charts.back());
  put(html,
      "<section><h2>Throughput</h2><p class=\"say\">Tokens per second, over "
      "steps.</p>{}</section>\n",
      render_chart(charts[2]));
  put(html,
      "<section class=\"pair\"><div><h3>Learning rate</h3>{}</div>"
      "<div><h3>Gradient norm, before clipping</h3>{}</div></section>\n",
      render_chart(charts[3]), render_chart(charts[4]));
  for (const Chart& chart : std::span(charts).subspan(5)) {
    if (chart.id == "sources") continue;  // beside the loss
    const bool is_waited = chart.id == "waited";
    put(html, "<section><h2>{}</h2><p class=\"say\">{}</p>{}</section>\n",
        is_waited ? "Waiting for other sites" : "Residual",
        is_waited ? "Seconds that each site has waited in exchanges since its process started. The "
                    "one that waits least is the one that others wait for."
                  : "What encoding has lost of the first rank's gradients and not yet sent, as a "
                    "share of the gradient norm.",
        render_chart(chart));
  }
  return html;
}

void put_bar(std::string& html, const MemoryRow& row, std::uint64_t largest, bool is_total) {
  const auto percent = [&](std::uint64_t value) {
    return 100 * static_cast<double>(value) / static_cast<double>(largest);
  };
  const char* total = is_total ? " total" : "";
  put(html,
      "<div class=\"row\"><div class=\"tag{0}\">{1}</div><div class=\"track\">"
      "<i class=\"p\" style=\"width:{2:.2f}%\"></i><i class=\"m\" "
      "style=\"width:{3:.2f}%\"></i></div>"
      "<div class=\"num{0}\"><span>{4}</span><span>{5}</span></div><div "
      "class=\"off\">{6}</div></div>",
      total, escape_html(row.tag), percent(row.predicted_bytes), percent(row.measured_bytes),
      bytes(row.predicted_bytes), bytes(row.measured_bytes),
      difference(row.predicted_bytes, row.measured_bytes));
}

std::string rank_memory(const RunReport& report) {
  if (report.ranks.empty()) return "";
  std::uint64_t largest = 1;
  for (const auto& row : report.ranks) {
    largest = std::max({largest, row.predicted_bytes, row.measured_bytes});
  }
  std::string html =
      "<h3>By rank</h3><p class=\"say\">The largest total that each rank held.</p>"
      "<div class=\"bars\">";
  for (const auto& row : report.ranks) {
    put_bar(html, {fmt::format("rank {}", row.rank), row.predicted_bytes, row.measured_bytes},
            largest, false);
  }
  return html + "</div>";
}

std::string memory_section(const RunReport& report) {
  std::string html = "<section id=\"memory\"><h2>Memory</h2>";
  const MemoryRow& sum = report.memory_total;
  const bool has_total = sum.predicted_bytes > 0 || sum.measured_bytes > 0;
  std::uint64_t largest = std::max<std::uint64_t>({1, sum.predicted_bytes, sum.measured_bytes});
  for (const auto& row : report.memory) {
    largest = std::max({largest, row.predicted_bytes, row.measured_bytes});
  }
  if (report.memory.empty()) {
    return html + "<p class=\"say\">Nothing was recorded.</p></section>\n";
  }
  html +=
      "<p class=\"say\">What a dry run of the step predicted for each purpose, and what was held, "
      "both at the moment when the total was largest.</p>"
      "<ul class=\"legend\"><li><i class=\"predicted\"></i>predicted</li>"
      "<li><i class=\"measured\"></i>measured</li></ul><div class=\"bars\">";
  for (const auto& row : report.memory) {
    if (row.predicted_bytes > 0 || row.measured_bytes > 0) put_bar(html, row, largest, false);
  }
  if (has_total) put_bar(html, sum, largest, true);
  return html + "</div>" + rank_memory(report) + "</section>\n";
}

std::string pipeline_section(const RunReport& report) {
  if (report.timelines.empty()) return "";
  std::string html =
      "<section id=\"pipeline\"><h2>Pipeline</h2><p class=\"say\">One step, a row per pipeline "
      "rank.</p>";
  for (const auto& [title, timeline] : report.timelines) {
    put(html, "<h3>{}</h3>{}", escape_html(title), timeline_figure(timeline));
  }
  return html + "</section>\n";
}

std::string communication_section(const RunReport& report) {
  std::string html = "<section id=\"communication\"><h2>Communication</h2>";
  if (report.communication.empty()) {
    return html + "<p class=\"say\">One process: nothing was sent.</p></section>\n";
  }
  const bool is_coded = std::ranges::any_of(report.communication, [](const auto& row) {
    return row.counted_payload > row.counted_bytes;
  });
  html +=
      "<p class=\"say\">Calls and payload by mesh axis over the whole run, as predicted and as "
      "counted.</p><div class=\"scroll\"><table><tr><th>Axis</th><th>Operation</th><th class=\"n\">"
      "Calls predicted</th><th class=\"n\">counted</th>";
  if (is_coded) {
    html += "<th class=\"n\">Payload predicted</th><th class=\"n\">counted</th>";
  }
  put(html, "<th class=\"n\">{} predicted</th><th class=\"n\">counted</th><th></th></tr>",
      is_coded ? "On the wire" : "Payload");
  for (const auto& row : report.communication) {
    const bool is_less = is_less_by_data(row);
    const char* const why =
        row.predicted_payload > 0 && row.predicted_payload != row.predicted_bytes
            ? ", by the values"
            : ", by documents";
    const std::string verdict = traffic_difference(row) + (is_less ? why : "");
    put(html, "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
        escape_html(row.axis), escape_html(row.operation),
        format_thousands(static_cast<std::int64_t>(row.predicted_calls)),
        format_thousands(static_cast<std::int64_t>(row.counted_calls)));
    if (is_coded) {
      put(html, "<td class=\"n\">{}</td><td class=\"n\">{}</td>", bytes(row.predicted_payload),
          bytes(row.counted_payload));
    }
    put(html, "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"{}\">{}</td></tr>",
        bytes(row.predicted_bytes), bytes(row.counted_bytes),
        is_less || verdict == "exact" ? "same" : "differs", verdict);
  }
  return html + "</table></div></section>\n";
}

std::string samples_section(const RunReport& report) {
  if (report.samples.empty()) return {};
  std::string html = "<section id=\"samples\"><h2>Samples</h2>";
  for (const auto& sample : report.samples) {
    put(html, "<h3 class=\"soft\">Step {}</h3><pre>", format_thousands(sample.step));
    if (!sample.prompt.empty()) put(html, "<mark>{}</mark>", escape_html(sample.prompt));
    put(html, "{}</pre>", escape_html(sample.text));
  }
  return html + "</section>\n";
}

// Keys of one section of the run file stay together under its name.
std::string settings_section(const RunReport& report) {
  if (report.settings.empty()) return {};
  std::string html = "<section id=\"settings\"><h2>Settings</h2><div class=\"settings\">";
  std::string group;
  bool is_open = false;
  for (const auto& [key, value] : report.settings) {
    const auto dot = key.find('.');
    const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
    if (!is_open || section != group) {
      if (is_open) html += "</table></div>";
      put(html, "<div><h3>{}</h3><table>", escape_html(section.empty() ? "run" : section));
      group = section;
      is_open = true;
    }
    put(html, "<tr><td>{}</td><td>{}</td></tr>",
        escape_html(dot == std::string::npos ? key : key.substr(dot + 1)), escape_html(value));
  }
  return html + "</table></div></div></section>\n";
}

}  // namespace

std::string report_html(const RunReport& report) {
  const std::vector<Chart> charts = charts_of(report);
  Page page{
      .kind = "Heddle run report",
      .title = report.title,
      .summary = report.model,
      .body = figures(report) + run_facts(report) + warnings(report) +
              curves_section(report, charts) + samples_section(report) + memory_section(report) +
              pipeline_section(report) +
              (report.attention ? attention_section(*report.attention) : "") +
              experts_section(report.history.expert_load, report.expert_exchanges) +
              communication_section(report) + speeds_section(report) +
              epochs_section(report.epochs) + starts_section(report) + settings_section(report),
      .footer = "The same numbers for programs: report.json and metrics.jsonl in this folder."};
  put(page.body, "<script type=\"application/json\" id=\"curves\">{}</script>\n",
      chart_data(charts));
  return page_html(page);
}

void write_report_html(const std::filesystem::path& path, const RunReport& report) {
  write_file_atomically(real_file_system(), path, report_html(report));
}

}  // namespace heddle::observe
