#include "observe/sinks/console.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/strings.h"

namespace heddle::observe {
namespace {

std::string format_lr(double lr) {
  if (lr == 0 || !std::isfinite(lr)) return fmt::format("{}", lr);
  // 3.0e-04 -> 3.0e-4: the exponent is read aloud, not aligned.
  std::string text = fmt::format("{:.1e}", lr);
  const auto zero = text.find_first_of("+-", 1) + 1;
  if (text[zero] == '0') text.erase(zero, 1);
  return text;
}

std::string format_milliseconds(double seconds) {
  if (seconds < 0.01) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 10) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.1f} s", seconds);
}

// Three significant digits are what a rate is good for: 318k, 1.24M, 87.
std::string format_rate(double rate) {
  if (!std::isfinite(rate)) return "?";
  if (rate < 1000) return fmt::format("{:.0f}", rate);
  const bool millions = rate >= 999500;
  const double scaled = rate / (millions ? 1e6 : 1e3);
  const int digits = scaled < 10 ? 2 : scaled < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", scaled, digits, millions ? "M" : "k");
}

// An estimate does not deserve seconds once it is minutes.
std::string format_eta(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 60) return fmt::format("{:.0f}s", seconds);
  if (seconds < 3570) return fmt::format("{:.0f}m", seconds / 60);
  return format_duration(seconds);
}

std::string format_memory(const StepMetrics& m) {
  if (m.memory_limit_bytes == 0) return format_bytes(static_cast<double>(m.memory_bytes));
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double limit = static_cast<double>(m.memory_limit_bytes) / kGib;
  return fmt::format("{:.1f}/{:.{}f} GiB", static_cast<double>(m.memory_bytes) / kGib, limit,
                     limit < 10 ? 1 : 0);
}

struct Describe {
  std::string operator()(const CheckpointRequested& e) const {
    return fmt::format("step {}: writing a checkpoint", e.step);
  }
  std::string operator()(const CheckpointDurable& e) const {
    return fmt::format("step {}: checkpoint durable in {} ({}): {}", e.step,
                       format_duration(e.seconds), format_bytes(static_cast<double>(e.bytes)),
                       e.path);
  }
  std::string operator()(const UpdateSkipped& e) const {
    return fmt::format("step {}: update skipped: {}", e.step, e.reason);
  }
  std::string operator()(const SampleText& e) const {
    return fmt::format("step {} sample: {}{}", e.step, e.prompt, e.text);
  }
  std::string operator()(const SitesMet& e) const {
    return fmt::format("step {}: sites met | mean loss {:.3f} | seconds waited so far {:.1f}",
                       e.step, e.loss, fmt::join(e.waited, ", "));
  }
  std::string operator()(const SiteWasSlow& e) const {
    return fmt::format(
        "step {}: site {} kept others waiting for {:.1f} s of the {:.1f} s since they met before",
        e.step, e.site, e.seconds, e.window);
  }
  std::string operator()(const PacesChanged& e) const {
    std::string text = fmt::format("step {}: ", e.step);
    if (!e.slow.empty()) text += paces(e.slow, "slow");
    if (!e.slow.empty() && !e.recovered.empty()) text += "; ";
    if (!e.recovered.empty()) text += paces(e.recovered, "no longer slow");
    return text;
  }

  /// "rank 3 is slow: a micro-batch takes it 12 ms a block, 1.62 times the median of 7 ranks with
  /// equal work"; of several, which and how much.
  static std::string paces(const std::vector<RankPace>& ranks, const char* what) {
    constexpr std::size_t kShown = 8;
    if (ranks.size() == 1) {
      const RankPace& one = ranks.front();
      return fmt::format(
          "rank {} is {}: a micro-batch takes it {} a block, {:.2f} times {} with equal "
          "work",
          one.rank, what, format_milliseconds(one.seconds), one.ratio(),
          one.others == 1 ? "that of the other rank"
                          : fmt::format("the median of the {} other ranks", one.others));
    }
    std::string text;
    for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
      text +=
          fmt::format("{}{} ({:.2f} times)", i == 0 ? "" : ", ", ranks[i].rank, ranks[i].ratio());
    }
    if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
    return fmt::format(
        "ranks {} are {}: what a block takes them, over the median of ranks with "
        "equal work",
        text, what);
  }
};

}  // namespace

std::string format_step(const StepMetrics& m) {
  std::string line = fmt::format(
      "step {}/{} | {}loss {:.3f} | norm {:.2f} | lr {} | {} | {} tok/s", m.step, m.steps_total,
      m.site < 0 ? "" : fmt::format("site {}: ", m.site), m.loss, m.grad_norm, format_lr(m.lr),
      format_milliseconds(m.step_seconds), format_rate(m.tokens_per_second));
  if (m.mfu) line += fmt::format(" | MFU {:.1f}%", *m.mfu * 100);
  if (m.memory_bytes > 0) line += " | mem " + format_memory(m);
  if (m.step < m.steps_total) line += " | ETA " + format_eta(m.eta_seconds);
  return line;
}

void ConsoleSink::on_step(const StepMetrics& metrics) {
  const bool is_due =
      options_.line_every > 0 && (metrics.step % options_.line_every == 0 || !has_printed_ ||
                                  metrics.step == metrics.steps_total);
  if (is_due) {
    log_info("{}", format_step(metrics));
    has_printed_ = true;
  }
  if (options_.terminal.is_terminal) draw_live(metrics);
}

void ConsoleSink::draw_live(const StepMetrics& metrics) {
  if (has_live_line_ && since_draw_.seconds() < options_.redraw_seconds) return;
  show_live(format_step(metrics));
  since_draw_.restart();
}

void ConsoleSink::show_live(std::string line) {
  // The last column stays free: a full line would wrap, and a wrapped line cannot be rewritten.
  line.resize(
      std::min(line.size(), static_cast<std::size_t>(std::max(options_.terminal.columns - 1, 1))));
  const std::size_t columns = line.size();
  if (options_.terminal.colors) line = "\x1b[2m" + line + "\x1b[0m";
  set_status_line(line, columns);
  has_live_line_ = true;
}

void ConsoleSink::on_eval(const EvalMetrics& m) {
  std::string sources;
  for (const SourceLoss& source : m.sources) {
    sources += fmt::format("{}{} {:.4f}", sources.empty() ? " | " : ", ", source.name, source.loss);
  }
  log_info("step {}: held-out loss {:.4f} | perplexity {:.2f}{}", m.step, m.loss, m.perplexity,
           sources);
}

void ConsoleSink::on_event(const RunEvent& event) {
  // A beginning is worth a look while it lasts; what stays is that it is done.
  if (std::holds_alternative<CheckpointRequested>(event)) {
    if (options_.terminal.is_terminal) show_live(std::visit(Describe{}, event));
    return;
  }
  if (const auto* const met = std::get_if<SitesMet>(&event)) {
    const bool is_due = options_.line_every > 0 && met->step >= met_ + options_.line_every;
    if (!is_due) return;
    met_ = met->step;
  }
  if (const auto* const slow = std::get_if<SiteWasSlow>(&event)) {
    const bool is_known = slow_ && slow_->site == slow->site;
    if (is_known && slow->step < slow_->step + options_.line_every) return;
    slow_ = *slow;
  }
  if (std::holds_alternative<CheckpointDurable>(event)) close();
  const auto* const paces = std::get_if<PacesChanged>(&event);
  const bool is_warning = std::holds_alternative<UpdateSkipped>(event) ||
                          std::holds_alternative<SiteWasSlow>(event) ||
                          (paces != nullptr && !paces->slow.empty());
  log_line(is_warning ? LogLevel::warn : LogLevel::info, std::visit(Describe{}, event));
}

void ConsoleSink::close() {
  if (has_live_line_) set_status_line("", 0);
  has_live_line_ = false;
}

}  // namespace heddle::observe
