#include "observe/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/strings.h"

namespace heddle::observe {
namespace {

constexpr double kSilentSeconds = 2.0;
constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 10.0;

double steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string amount(double value, const std::string& unit) {
  return unit == "B" ? format_bytes(value) : format_count(value) + " " + unit;
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)), next_show_(kSilentSeconds) {
  if (!options_.clock) options_.clock = steady_seconds;
  start_ = options_.clock();
}

Progress::~Progress() {
  if (has_live_line_) set_status_line("", 0);
}

double Progress::elapsed() const { return options_.clock() - start_; }

std::string Progress::describe(double seconds) const {
  const double done = static_cast<double>(done_.load());
  const double total = static_cast<double>(options_.total);
  const double rate = seconds > 0 ? (done - static_cast<double>(skipped_)) / seconds : 0;
  std::string line = options_.label;
  if (total > 0) {
    line += fmt::format(" {:3.0f}% | {} of {}", 100 * std::min(done / total, 1.0),
                        amount(done, options_.unit), amount(total, options_.unit));
  } else {
    line += " | " + amount(done, options_.unit);
  }
  line += fmt::format(" | {}/s", amount(rate, options_.unit));
  if (rate > 0 && done < total) line += " | ETA " + format_duration((total - done) / rate);
  return line;
}

void Progress::add(std::uint64_t amount) {
  done_ += amount;
  const double seconds = elapsed();
  if (seconds < next_show_ || options_.terminal.is_silent) return;
  // Whoever comes first draws; the others go on with their work.
  const std::unique_lock lock(showing_, std::try_to_lock);
  if (lock.owns_lock() && seconds >= next_show_) show(seconds);
}

void Progress::show(double seconds) {
  next_show_ = seconds + (options_.terminal.is_terminal ? kRedrawSeconds : kPlainSeconds);
  std::string line = describe(seconds);
  if (!options_.terminal.is_terminal) {
    log_info("{}", line);
    return;
  }
  const auto room = static_cast<std::size_t>(std::max(options_.terminal.columns - 1, 1));
  line.resize(std::min(line.size(), room));
  line.resize(valid_utf8_prefix(line));
  set_status_line(line, line.size());
  has_live_line_ = true;
}

void Progress::skip(std::uint64_t amount) {
  const std::lock_guard lock(showing_);
  skipped_ += amount;
  done_ += amount;
}

void Progress::finish() {
  const std::lock_guard lock(showing_);
  if (has_live_line_) set_status_line("", 0);
  has_live_line_ = false;
  const double seconds = elapsed();
  if (seconds < kSilentSeconds || options_.terminal.is_silent) return;
  const double done = static_cast<double>(done_.load());
  log_info("{}: {} in {} ({}/s)", options_.label, amount(done, options_.unit),
           format_duration(seconds),
           amount((done - static_cast<double>(skipped_)) / seconds, options_.unit));
}

}  // namespace heddle::observe
