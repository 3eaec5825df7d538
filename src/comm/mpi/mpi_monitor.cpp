#include "comm/mpi/mpi_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "comm/verdict.h"

// Lines: "R report", "H" (a heartbeat of rank 0), "E" (ended well), "A reason" (to rank 0: stop the
// world), "F reason" (from rank 0: the world has failed).

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A line feed would end the line too early.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

MpiMonitor::MpiMonitor(int rank, int size,
                       const std::function<std::string(std::string)>& from_first,
                       WatchdogOptions options, std::shared_ptr<WorldFailure> failure,
                       std::shared_ptr<FlightRecorder> flight)
    : rank_(rank),
      size_(size),
      options_(std::move(options)),
      limit_(options_.limit.count() > 0 ? options_.limit.count()
                                        : std::numeric_limits<double>::infinity()),
      failure_(std::move(failure)),
      flight_(std::move(flight)),
      channel_(rank, size, from_first),
      reports_(static_cast<std::size_t>(size)),
      heard_(static_cast<std::size_t>(size), Clock::now()) {
  for (int r = 0; r < size; ++r) reports_[static_cast<std::size_t>(r)].rank = r;
  thread_ = std::thread([this] { run(); });
}

MpiMonitor::~MpiMonitor() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  channel_.wake();
  thread_.join();
}

double MpiMonitor::seconds_since(Clock::time_point then) const {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

void MpiMonitor::stop_world(const std::string& reason) noexcept {
  {
    std::unique_lock lock(mutex_);
    news_.push_back("A " + one_line(reason));
    channel_.wake();
    told_.wait_for(lock, 2s, [this] { return failure_->has_failed(); });
  }
  failure_->fail(reason);
}

void MpiMonitor::say_ended() {
  {
    const std::lock_guard lock(mutex_);
    news_.emplace_back("E");
  }
  channel_.wake();
}

void MpiMonitor::run() {
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::clamp<std::chrono::duration<double>>(options_.limit / 10, 10ms, 1s));
  const auto every = options_.limit.count() > 0 ? pause : 1000ms;
  for (auto next_beat = Clock::now();;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(next_beat - Clock::now());
    for (const auto& event : channel_.wait(std::max(left, 0ms))) handle(event);
    tell_news();
    if (Clock::now() >= next_beat) {
      beat();
      next_beat = Clock::now() + every;
    }
    give_up_in_time();
    const std::lock_guard lock(mutex_);
    if (is_stopping_) break;
  }
  tell_news();
  channel_.flush(500ms);
}

void MpiMonitor::handle(const SideChannel::Event& event) {
  RankReport& report = reports_[static_cast<std::size_t>(event.rank)];
  heard_[static_cast<std::size_t>(event.rank)] = Clock::now();
  if (event.is_closed) {
    report.is_gone = true;
    if (rank_ == 0) {
      judge_ranks();
    } else if (!first_has_ended_) {
      announce("the process of rank 0 is gone");
    }
    return;
  }
  const std::string text = event.line.size() > 2 ? event.line.substr(2) : "";
  switch (event.line.empty() ? '?' : event.line[0]) {
    case 'R': report = rank_report_from(text); break;
    case 'A':
    case 'F': announce(text); break;
    case 'E': (rank_ == 0 ? report.has_ended : first_has_ended_) = true; break;
    default: break;
  }
}

void MpiMonitor::tell_news() {
  std::vector<std::string> news;
  {
    const std::lock_guard lock(mutex_);
    news.swap(news_);
  }
  for (const std::string& line : news) {
    if (rank_ != 0) {
      channel_.send(0, line, true);
    } else if (line[0] == 'A') {
      announce(line.substr(2));
    } else {
      for (int r = 1; r < size_; ++r) channel_.send(r, line, true);
    }
  }
}

void MpiMonitor::announce(const std::string& reason) {
  if (failure_->has_failed()) return;
  if (rank_ == 0) {
    for (int r = 1; r < size_; ++r) channel_.send(r, "F " + one_line(reason), true);
  }
  failure_->fail(reason);
  failed_at_ = Clock::now();
  const std::lock_guard lock(mutex_);
  told_.notify_all();
}

void MpiMonitor::beat() {
  if (rank_ != 0) {
    if (options_.limit.count() > 0) channel_.send(0, "R " + to_text(flight_->report()));
    if (!first_has_ended_ && seconds_since(heard_[0]) > limit_) {
      announce(
          fmt::format("rank 0 has given no sign of life for {:.1f} s", seconds_since(heard_[0])));
    }
    return;
  }
  for (int r = 1; r < size_; ++r) channel_.send(r, "H");
  judge_ranks();
}

void MpiMonitor::judge_ranks() {
  if (failure_->has_failed()) return;
  reports_[0] = flight_->report();
  for (int r = 1; r < size_; ++r) {
    reports_[static_cast<std::size_t>(r)].silent_seconds =
        seconds_since(heard_[static_cast<std::size_t>(r)]);
  }
  if (const auto verdict = judge(reports_, limit_)) announce(verdict->text);
}

void MpiMonitor::give_up_in_time() {
  if (!failure_->has_failed()) return;
  if (failed_at_ == Clock::time_point{}) failed_at_ = Clock::now();
  if (seconds_since(failed_at_) < options_.grace.count()) return;
  const std::string reason = failure_->reason();
  if (!options_.flight_folder.empty()) {
    try {
      flight_->write(options_.flight_folder / fmt::format("rank-{}.jsonl", rank_));
    } catch (const Error& error) {
      log_warn("the last calls of rank {} are lost: {}", rank_, error.what());
    }
  }
  channel_.flush(200ms);
  if (options_.give_up) options_.give_up(reason);
  log_line(LogLevel::error, reason);
  std::_Exit(static_cast<int>(ErrorCode::peer));
}

}  // namespace heddle
