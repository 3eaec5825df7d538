#include "planner/plan_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "base/strings.h"
#include "observe/bars.h"
#include "observe/chart.h"
#include "observe/page.h"
#include "observe/put.h"
#include "observe/scatter.h"
#include "planner/link_text.h"
#include "planner/plan_timeline.h"

namespace heddle::planner {
namespace {

using observe::escape_html;
using observe::put;

std::string seconds_text(double seconds) {
  if (seconds >= 10.0) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1.0) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.3g} ms", 1e3 * seconds);
}

std::string interval_text(const Finalist& plan) {
  const double spread = plan.found.time.spread;
  return fmt::format("{} to {}", seconds_text(plan.seconds * (1 - spread)),
                     seconds_text(plan.seconds * (1 + spread)));
}

std::string figures(const PlanReport& report) {
  const Finalist& best = report.plans.front();
  std::string html = "<dl class=\"figures\">";
  html += observe::headline_figure("Step", seconds_text(best.seconds),
                                   "two in three: " + interval_text(best));
  html += observe::headline_figure(
      "Utilization", fmt::format("{:.1f} %", 100 * model_flops_utilization(report, best.seconds)),
      "of the devices' peak (MFU)");
  html += observe::headline_figure(
      "Throughput", format_count(report.tokens_per_step() / best.seconds), "tokens/s");
  html += observe::headline_figure(
      "Memory", format_bytes(best.found.memory.total()),
      fmt::format("of {} on the fullest rank", format_bytes(report.machine.device.memory_bytes)));
  html += observe::headline_figure(
      "Layouts", format_count(static_cast<double>(report.result.evaluated)),
      fmt::format("searched in {}", format_duration(report.search_seconds)));
  return html + "</dl>\n";
}

/// How attention over cp could be shared, the way that was taken first.
std::string methods_table(const std::vector<ContextCost>& methods) {
  if (methods.empty()) return "";
  std::string html =
      "<div class=\"scroll\"><table class=\"close\"><tr><th>Attention shared by</th><th "
      "class=\"n\">In a block</th><th class=\"n\">Of it waiting</th><th class=\"n\">Sent</th></tr>";
  for (const ContextCost& cost : methods) {
    put(html,
        "<tr{}><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>",
        &cost == &methods.front() ? " class=\"chosen\"" : "", describe(cost),
        seconds_text(cost.seconds), seconds_text(cost.exposed_f + cost.exposed_b),
        format_bytes(static_cast<double>(cost.sent_bytes)));
  }
  return html + "</table></div>";
}

std::string choice_section(const PlanReport& report) {
  std::string html = "<section id=\"plan\"><h2>The plan</h2>";
  put(html, "<p class=\"say\"><b>{}</b>.",
      escape_html(describe(report.plans.front().found.candidate)));
  if (const std::string why = why_taken(report.plans); !why.empty()) {
    put(html, " Taken although {}.", escape_html(why));
  }
  if (const std::string why = why_context(report); !why.empty()) {
    put(html, " Ranks share sequences (cp): {}.", escape_html(why));
  }
  if (report.mapping) {
    put(html, " Servers in the order {}: messages and gradients take {} instead of {}.",
        fmt::join(report.mapping->placement.servers, " "),
        seconds_text(report.mapping->placement.seconds),
        seconds_text(report.mapping->in_order_seconds));
  }
  if (const std::string most = most_rows_text(report); !most.empty()) {
    put(html, " Experts: {}.", escape_html(most));
  }
  html += "</p>";
  html += methods_table(report.methods);
  put(html, "<details><summary>As sections of a run file</summary><pre>{}</pre></details>",
      escape_html(plan_toml(report)));
  return html + "</section>\n";
}

// ---- The best plans
// ------------------------------------------------------------------------------

/// What of a step communication on an axis takes.
struct AxisTime {
  const char* axis;
  int ranks;
  double exposed, hidden;
};

/// Gradients are exchanged over cp too.
const char* replicas_name(const Candidate& mesh) { return mesh.cp > 1 ? "dp and cp" : "dp"; }

/// As simulated, or by the closed form where the step was too long for that.
std::vector<AxisTime> dense_axis_times(const Finalist& plan) {
  const Candidate& mesh = plan.found.candidate;
  const TimeEstimate& time = plan.found.time;
  if (!plan.is_simulated) {
    return {{"tp", mesh.tp, time.tp, 0.0},
            {"cp", mesh.cp, time.cp, 0.0},
            {"pp", mesh.pp, time.pp, 0.0},
            {replicas_name(mesh), mesh.token_ranks(), time.dp, time.dp_hidden}};
  }
  const StepTimes& times = plan.times;
  const auto sum = [](const auto& by_traffic, Traffic one, Traffic other) {
    return by_traffic[static_cast<std::size_t>(one)] + by_traffic[static_cast<std::size_t>(other)];
  };
  return {{"tp", mesh.tp, times.tp, 0.0},
          {"cp", mesh.cp, times.cp, 0.0},
          {"pp", mesh.pp, sum(times.exposed, Traffic::pp, Traffic::lanes),
           sum(times.hidden, Traffic::pp, Traffic::lanes)},
          {replicas_name(mesh), mesh.token_ranks(), sum(times.exposed, Traffic::dp, Traffic::ends),
           sum(times.hidden, Traffic::dp, Traffic::ends)}};
}

/// Beside the others where some of the plans that are shown divide experts.
bool shows_experts(const PlanReport& report) {
  const auto shown = std::span(report.plans).first(std::min(kPlansShown, report.plans.size()));
  return std::ranges::any_of(
      shown, [](const Finalist& plan) { return plan.found.candidate.divides_experts(); });
}

std::vector<AxisTime> axis_times(const PlanReport& report, const Finalist& plan) {
  std::vector<AxisTime> times = dense_axis_times(plan);
  if (!shows_experts(report)) return times;
  const Candidate& mesh = plan.found.candidate;
  times.push_back(
      {"ep", mesh.ep * mesh.etp, plan.is_simulated ? plan.times.ep : plan.found.time.ep, 0.0});
  return times;
}

observe::StackedBars time_bars(const PlanReport& report) {
  observe::StackedBars bars{.parts = {{"computation", 'a'},
                                      {"computed again", 'b'},
                                      {"bubble", 'g'},
                                      {"tp", 'c'},
                                      {"cp", 'i'},
                                      {"pp", 'e'},
                                      {"dp", 'd'},
                                      {"optimizer", 'f'},
                                      {"slowest rank", 'h'}},
                            .rows = {},
                            .format = seconds_text};
  const bool has_experts = shows_experts(report);
  if (has_experts) bars.parts.push_back({"ep", 'j'});
  for (std::size_t i = 0; i < std::min(kPlansShown, report.plans.size()); ++i) {
    const Finalist& plan = report.plans[i];
    const TimeEstimate& time = plan.found.time;
    const bool is_simulated = plan.is_simulated;
    const double compute = is_simulated ? plan.times.compute : time.compute;
    const auto axes = axis_times(report, plan);
    bars.rows.push_back(
        {.name = fmt::format("{}", i + 1),
         .parts = {compute - time.recompute, time.recompute,
                   is_simulated ? plan.times.bubble : time.bubble, axes[0].exposed, axes[1].exposed,
                   axes[2].exposed, axes[3].exposed,
                   is_simulated ? plan.times.optimizer : time.step, time.stragglers},
         .total = seconds_text(plan.seconds)});
    if (has_experts) bars.rows.back().parts.push_back(axes[4].exposed);
  }
  return bars;
}

std::string axis_cell(const AxisTime& time) {
  if (time.ranks == 1) return "<td class=\"n\">\xE2\x80\x93</td>";
  std::string html = "<td class=\"n\">" + seconds_text(time.exposed);
  if (time.hidden > 0.0) put(html, "<br><small>{} hidden</small>", seconds_text(time.hidden));
  return html + "</td>";
}

std::string plans_section(const PlanReport& report) {
  std::string html =
      "<section id=\"plans\"><h2>The best plans</h2><p class=\"say\">What the time of a step goes "
      "into, simulated; mean of all devices.</p>";
  html += render_bars(time_bars(report));
  html +=
      "<div class=\"scroll\"><table class=\"close\"><tr><th></th><th>Plan</th><th "
      "class=\"n\">Step</th><th "
      "class=\"n\">MFU</th><th class=\"n\">Memory</th><th class=\"n\">Bubble</th><th "
      "class=\"n\">tp</th><th class=\"n\">cp</th><th class=\"n\">pp</th><th "
      "class=\"n\">dp</th>";
  html += shows_experts(report) ? "<th class=\"n\">ep</th></tr>" : "</tr>";
  for (std::size_t i = 0; i < std::min(kPlansShown, report.plans.size()); ++i) {
    const Finalist& plan = report.plans[i];
    const std::string why = why_not_taken(plan, report.plans.front());
    put(html,
        "<tr{}><td class=\"n\">{}</td><td class=\"plan\">{}{}{}</td><td class=\"n\">{}<br><small>{}"
        "</small></td><td class=\"n\">{:.1f} %</td><td class=\"n\">{}</td><td class=\"n\">{:.1f} %"
        "</td>",
        i == 0 ? " class=\"chosen\"" : "", i + 1, escape_html(describe(plan.found.candidate)),
        plan.is_simulated ? "" : " (not simulated)", why.empty() ? "" : fmt::format(" ({})", why),
        seconds_text(plan.seconds), interval_text(plan),
        100 * model_flops_utilization(report, plan.seconds),
        format_bytes(plan.found.memory.total()), 100 * plan.bubble_fraction);
    for (const AxisTime& time : axis_times(report, plan)) html += axis_cell(time);
    html += "</tr>";
  }
  put(html,
      "</table></div><p class=\"note\">Below a time, the interval in which two runs in three lie. "
      "tp, cp, pp, dp{}: what is waited for on that axis.</p></section>\n",
      shows_experts(report) ? ", ep" : "");
  return html;
}

std::string near_misses_section(const PlanReport& report) {
  if (report.near_misses.empty()) return "";
  std::string html =
      "<section id=\"near-misses\"><h2>Near misses</h2><p class=\"note\">Their times are the "
      "formula's, not simulated.</p><div class=\"scroll\"><table><tr>"
      "<th>Plan</th><th class=\"n\">Step</th><th class=\"n\">Memory</th><th>Why not</th></tr>";
  for (const auto& [found, reason] : report.near_misses) {
    put(html,
        "<tr><td class=\"plan\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td>{}</td></tr>",
        escape_html(describe(found.candidate)), seconds_text(found.time.total),
        format_bytes(found.memory.total()), escape_html(reason));
  }
  return html + "</table></div></section>\n";
}

// ---- One step
// ------------------------------------------------------------------------------------

std::string timeline_section(const Schedule& schedule, const SimulatedStep& step) {
  const observe::Timeline drawn = plan_timeline(schedule, step);
  std::string html =
      "<section id=\"timeline\"><h2>One step</h2><p class=\"say\">A row per pipeline rank, which "
      "stands for its tp and dp ranks; below each, thin, what travels meanwhile.";
  if (drawn.every > 1) put(html, " One of {} ranks is drawn.", drawn.every);
  put(html, "</p>{}</section>\n", observe::timeline_figure(drawn));
  return html;
}

std::string memory_section(const PlanReport& report) {
  observe::StackedBars bars{
      .parts = {{"parameters", 'a'},
                {"gradients", 'c'},
                {"optimizer", 'd'},
                {"activations", 'e'},
                {"reserved", 'f'}},
      .rows = {},
      .format = [](double bytes) { return format_bytes(bytes); },
      .limit = report.result.limit_bytes,
      .limit_name = fmt::format("{} may be used", format_bytes(report.result.limit_bytes))};
  const Found& plan = report.plans.front().found;
  const auto by_rank = memory_by_rank(report.machine, report.job, plan.candidate);
  double most = 0.0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const MemoryEstimate& memory = by_rank[rank];
    most = std::max(most, memory.total());
    bars.rows.push_back({.name = fmt::format("rank {}", rank),
                         .parts = {memory.parameters, memory.gradients, memory.optimizer,
                                   memory.activations, memory.reserved},
                         .total = format_bytes(memory.total())});
  }
  std::string html;
  put(html,
      "<section id=\"memory\"><h2>Memory</h2><p class=\"say\">What a device of each pipeline rank "
      "holds at its peak. {:.0f} % of the device's memory stay free.",
      100 * report.options.margin);
  if (most < 0.99 * plan.memory.total()) {
    put(html, " The search, which does not go through schedules, took {} as a bound.",
        format_bytes(plan.memory.total()));
  }
  put(html, "</p>{}</section>\n", render_bars(bars));
  return html;
}

// ---- All layouts
// ---------------------------------------------------------------------------------

std::string point_note(const Found& found) {
  return fmt::format("{}, {}: {}", seconds_text(found.time.total),
                     format_bytes(found.memory.total()), describe(found.candidate));
}

observe::Scatter layouts_scatter(const PlanReport& report) {
  const SearchResult& result = report.result;
  const Found& chosen = report.plans.front().found;
  const double limit = result.limit_bytes / kGib, fastest = result.front.back().time.total;
  observe::Scatter scatter{
      .description = "Time of a step against memory, of all layouts that were searched",
      .axes = "across: GiB on the fullest rank; up: seconds of a step",
      .low = {0.0, 0.9 * std::min(fastest, chosen.time.total)},
      .high = {1.6 * limit, 3.0 * chosen.time.total},
      .limit = limit,
      .limit_name = "may be used"};
  for (const CloudPoint& point : result.cloud) {
    auto& dots = point.memory_bytes <= result.limit_bytes ? scatter.dots : scatter.dots_over;
    dots.push_back({point.memory_bytes / kGib, point.seconds});
  }
  for (const Found& found : result.front) {
    const bool fits = found.memory.total() <= result.limit_bytes;
    scatter.points.push_back(
        {found.memory.total() / kGib, found.time.total, point_note(found), fits ? "" : "over"});
  }
  scatter.chosen = {{chosen.memory.total() / kGib, chosen.time.total,
                     "the plan: " + point_note(chosen), "chosen"}};
  return scatter;
}

std::string layouts_section(const PlanReport& report) {
  const SearchResult& result = report.result;
  std::string html;
  put(html,
      "<section id=\"layouts\"><h2>Time against memory</h2><p class=\"say\">All {} layouts, {} of "
      "which fit. No layout needs less memory and less time than one on the line. Times here are "
      "of the closed form.</p><ul class=\"legend\"><li><i class=\"point chosen\"></i>the plan</li>"
      "<li><i class=\"point\"></i>best for its memory</li><li><i class=\"point "
      "cloud\"></i>fits</li>"
      "<li><i class=\"point over\"></i>does not</li></ul>{}",
      format_thousands(static_cast<std::int64_t>(result.evaluated)),
      format_thousands(static_cast<std::int64_t>(result.fitting)),
      render_scatter(layouts_scatter(report)));
  html +=
      "<details><summary>The best for every amount of memory, as a table</summary><div "
      "class=\"scroll\"><table><tr><th class=\"n\">Memory</th><th class=\"n\">Step</th>"
      "<th>Plan</th></tr>";
  for (const Found& found : result.front) {
    put(html, "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
        format_bytes(found.memory.total()), seconds_text(found.time.total),
        escape_html(describe(found.candidate)));
  }
  return html + "</table></div></details></section>\n";
}

// ---- Communication
// -------------------------------------------------------------------------------

std::string size_name(int bucket) {
  return format_bytes(std::exp2(bucket)) + " to " + format_bytes(std::exp2(bucket + 1));
}

/// What messages of a size carry together, and how many they are.
std::string sizes_html(const TrafficBySize& traffic) {
  constexpr std::array<char, 10> kColours = {'c', 'i', 'd', 'e', 'h', 'f', 'a', 'j', 'b', 'g'};
  observe::StackedBars bars{
      .parts = {}, .rows = {}, .format = [](double bytes) { return format_bytes(bytes); }};
  std::vector<const MessageSizes*> axes;
  traffic.visit([&](const char* axis, const MessageSizes& sizes) {
    bars.parts.push_back({axis, kColours[axes.size()]});
    axes.push_back(&sizes);
  });
  for (int bucket = MessageSizes::kBuckets - 1; bucket >= 0; --bucket) {
    observe::StackedBars::Row row{.name = size_name(bucket), .parts = {}, .total = ""};
    std::int64_t calls = 0, bytes = 0;
    for (const MessageSizes* sizes : axes) {
      const auto before = bytes;
      for (int op = 0; op < kCommOps; ++op) {
        calls += sizes->at(static_cast<CommOp>(op), bucket).calls;
        bytes += sizes->at(static_cast<CommOp>(op), bucket).bytes;
      }
      row.parts.push_back(static_cast<double>(bytes - before));
    }
    if (calls == 0) continue;
    row.total = format_bytes(static_cast<double>(bytes));
    row.total_note = fmt::format("{} calls", format_thousands(calls));
    bars.rows.push_back(row);
  }
  return "<h3 class=\"closer\">Payload by size of message</h3>" + render_bars(bars);
}

std::string traffic_table(const std::vector<AxisTraffic>& traffic) {
  std::string html =
      "<details><summary>Calls and payload by operation</summary><div class=\"scroll\"><table><tr>"
      "<th>Axis</th><th>Operation</th><th class=\"n\">Calls</th><th class=\"n\">Payload</th><th "
      "class=\"n\">Mean message</th></tr>";
  for (const AxisTraffic& row : traffic) {
    put(html,
        "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>",
        row.axis, row.operation, format_thousands(row.calls),
        format_bytes(static_cast<double>(row.payload_bytes)),
        format_bytes(static_cast<double>(row.payload_bytes) / static_cast<double>(row.calls)));
  }
  return html + "</table></div></details>";
}

/// Messages over cp are attention's; what else travels there is gradients and parameters.
bool is_of(const AxisTraffic& row, std::string_view axis) {
  const bool is_message = row.operation == "send" || row.operation == "recv";
  if (axis == "cp") return row.axis == "cp" && is_message;
  if (axis == "ep") return row.axis == "ep" || row.axis == "etp";
  if (!axis.starts_with("dp")) return row.axis.starts_with(axis);
  return row.axis == "dp" || row.axis == "edp" || row.axis == "several axes" ||
         (row.axis == "cp" && !is_message);
}

std::string communication_section(const PlanReport& report, const SimulatedStep* step) {
  const Finalist& plan = report.plans.front();
  const auto traffic = traffic_of(report, plan.found.candidate);
  std::string html = "<section id=\"communication\"><h2>Communication</h2>";
  if (plan.found.candidate.gpus() == 1) {
    return html + "<p class=\"say\">One device: nothing is sent.</p></section>\n";
  }
  html +=
      "<p class=\"say\">What a step waits for on each axis, and what is hidden under computation. "
      "Payloads are of whole tensors, as the first pipeline rank counts them.</p>";
  observe::StackedBars bars{
      .parts = {{"exposed", 'c'}, {"hidden", 'b'}}, .rows = {}, .format = seconds_text};
  for (const auto& [axis, ranks, exposed, hidden] : axis_times(report, plan)) {
    if (ranks == 1) continue;
    std::int64_t bytes = 0;
    for (const AxisTraffic& row : traffic) {
      if (is_of(row, axis)) bytes += row.payload_bytes;
    }
    bars.rows.push_back({.name = fmt::format("{} over {}", axis, ranks),
                         .parts = {exposed, hidden},
                         .total = seconds_text(exposed + hidden),
                         .total_note = format_bytes(static_cast<double>(bytes))});
  }
  html += render_bars(bars);
  if (step != nullptr) html += sizes_html(step->messages.front());
  return html + traffic_table(traffic) + "</section>\n";
}

std::string advice_section(const PlanReport& report) {
  if (report.advice.empty()) return "";
  std::string html = "<section id=\"shapes\"><h2>Shapes</h2><ul class=\"advice\">";
  for (const std::string& line : report.advice) put(html, "<li>{}</li>", escape_html(line));
  return html + "</ul></section>\n";
}

}  // namespace

std::string plan_page(const PlanReport& report) {
  const Candidate& plan = report.plans.front().found.candidate;
  std::optional<SimulatedStep> step;
  std::string timeline;
  if (simulated_passes(report.machine, report.job, plan) <= kMostPasses) {
    const Schedule schedule = step_schedule(plan, plan.microbatches(report.job));
    step = simulate_step(report.machine, report.job, plan, {.schedule = &schedule});
    timeline = timeline_section(schedule, *step);
  }
  return observe::page_html(
      {.kind = "Heddle plan",
       .title = fmt::format("{} on {} \xC3\x97 {}", report.model, report.options.gpus,
                            report.machine.device.name),
       .summary =
           fmt::format("{}; {} sequences of {} tokens per step in {}", report.machine.name,
                       format_thousands(report.job.batch), format_thousands(report.job.seq_len),
                       heddle::name_of(report.job.stack.compute)),
       .body = figures(report) + choice_section(report) +
               (report.links ? links_section(*report.links) : "") + plans_section(report) +
               timeline + memory_section(report) + layouts_section(report) +
               communication_section(report, step ? &*step : nullptr) +
               near_misses_section(report) + advice_section(report),
       .footer = "Predicted, not measured. The same numbers for programs: <code>heddle plan "
                 "--json</code>."});
}

}  // namespace heddle::planner
