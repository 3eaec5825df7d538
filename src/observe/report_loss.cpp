#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "observe/put.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

std::size_t reach_of(const Curve& curve) { return curve.size() / 60; }

Curve later_half(const Curve& curve) {
  Curve half;
  if (curve.empty()) return half;
  const auto middle = (curve.front().step + curve.back().step) / 2;
  std::copy_if(curve.begin(), curve.end(), std::back_inserter(half),
               [&](const CurvePoint& point) { return point.step > middle; });
  return half;
}

/// The loss that counts: the held-out one where there is one, since it compares with the entropy.
struct Reached {
  double loss = std::nan("");
  const char* kind = "training";
};
Reached reached(const RunReport& report) {
  const double eval = last_finite(report.history.eval_loss);
  if (std::isfinite(eval)) return {eval, "held-out"};
  return {last_finite(smoothed(report.history.loss))};
}

/// How far the run came, in words.
std::string loss_words(const RunReport& report) {
  const auto [loss, kind] = reached(report);
  if (!std::isfinite(loss)) return "No finite loss was recorded.";
  std::string text = fmt::format("Nats per token. The {} loss reached <b>{:.3f}</b>", kind, loss);
  const auto gap = loss_gap(report);
  if (!gap) return text + ".";
  const double best = *report.best_possible_loss;
  if (gap->nats < 0) {
    return text + fmt::format(
                      ", {:.3f} below the source\xE2\x80\x99s entropy of {:.3f}: as good as "
                      "any model can be, within the noise of the sample.",
                      -gap->nats, best);
  }
  text +=
      fmt::format(", <b>{:.3f} nats above</b> the best possible {:.3f}, the entropy of the source",
                  gap->nats, best);
  if (gap->way) {
    text += fmt::format(": <b>{} of the way</b> there from the first step\xE2\x80\x99s {:.3f}",
                        percent(*gap->way), report.history.loss.front().value);
  }
  return text + ".";
}

bool has_positive(const Curve& curve) {
  return std::any_of(curve.begin(), curve.end(), [](const CurvePoint& point) {
    return std::isfinite(point.value) && point.value > 0;
  });
}

/// Linear is what readers expect, until the fall is so deep that it shows nothing but the fall.
bool reads_better_logarithmic(const Chart& chart) {
  constexpr double kDeepFall = 10;
  double low = INFINITY, high = 0;
  for (const auto& point : chart.series.front().points) {  // the smoothed one
    if (!(point.value > 0) || !std::isfinite(point.value)) continue;
    low = std::min(low, point.value);
    high = std::max(high, point.value);
  }
  return high > kDeepFall * low;
}

}  // namespace

Curve smoothed(const Curve& curve) { return smooth(curve, reach_of(curve)); }
Curve typical(const Curve& curve) { return running_median(curve, reach_of(curve), kReportPoints); }

double last_finite(const Curve& curve) {
  for (auto point = curve.rbegin(); point != curve.rend(); ++point) {
    if (std::isfinite(point->value)) return point->value;
  }
  return std::nan("");
}

std::string percent(double share) { return fmt::format("{:.1f} %", std::floor(share * 1000) / 10); }

std::string short_time(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

std::optional<LossGap> loss_gap(const RunReport& report) {
  const double loss = reached(report).loss;
  if (!report.best_possible_loss || !std::isfinite(loss)) return std::nullopt;
  const double best = *report.best_possible_loss;
  LossGap gap{.nats = loss - best};
  const Curve& curve = report.history.loss;
  const double first = curve.empty() ? std::nan("") : curve.front().value;
  if (std::isfinite(first) && first > loss && gap.nats > 0)
    gap.way = (first - loss) / (first - best);
  return gap;
}

Chart loss_chart(const RunReport& report) {
  const History& history = report.history;
  Chart chart{.id = "loss",
              .description = fmt::format("Loss over {} steps", report.totals.steps),
              .height = 340,
              .series = {{"training, smoothed", "line", smoothed(history.loss)},
                         {"this step", "raw", history.loss},
                         {"held-out", "dots", history.eval_loss}},
              .has_log_axis = has_positive(history.loss)};
  if (report.best_possible_loss) {
    chart.bound = report.best_possible_loss;
    chart.bound_label = fmt::format("best possible {:.3f}", *report.best_possible_loss);
  }
  return chart;
}

Chart later_loss_chart(const Chart& whole) {
  Chart chart = whole;
  chart.id = "loss-later";
  chart.description = "The later half of the loss curve, enlarged";
  chart.height = 180;
  for (auto& series : chart.series) series.points = later_half(series.points);
  return chart;
}

std::string loss_section(const RunReport& report, const Chart& whole, const Chart& later) {
  std::string html;
  put(html, "<section><h2>Loss</h2><p class=\"say\">{}</p>{}<ul class=\"legend\">",
      loss_words(report), whole.has_log_axis ? axis_switch(reads_better_logarithmic(whole)) : "");
  html += "<li><i></i>training, smoothed</li><li><i class=\"raw\"></i>each step</li>";
  if (!report.history.eval_loss.empty()) html += "<li><i class=\"dots\"></i>held-out</li>";
  if (report.best_possible_loss) html += "<li><i class=\"bound\"></i>best possible</li>";
  if (!whole.marks.empty()) html += "<li><i class=\"mark\"></i>resumed</li>";
  put(html, "</ul>{}", render_chart(whole));
  constexpr std::size_t kWorthEnlarging = 100;
  if (report.history.loss.size() >= kWorthEnlarging) {
    put(html, "<h3 class=\"closer\">The later half, enlarged</h3>{}", render_chart(later));
  }
  return html + "</section>\n";
}

}  // namespace heddle::observe
