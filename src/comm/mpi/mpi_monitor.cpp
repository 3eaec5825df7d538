#include "comm/mpi/mpi_monitor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "comm/failure_text.h"
#include "comm/stopped_by_peer.h"

// Lines: "R report", "Q" (from rank 0: report now), "H" (a heartbeat of rank 0), "E" (ended well),
// "A code reason" (to rank 0: stop the world), "T" (from rank 0: tell the user what you fail of),
// "D" (done), "F teller code lost reason" (from rank 0: the world has failed, of these lost ranks
// or of none).

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// For a rank that may tell the user what it fails of.
constexpr auto kTimeToTell = 3s;
/// For ranks that are asked what they do; well below the time that they wait for a verdict.
constexpr auto kTimeToAnswer = 500ms;

/// A line feed would end the line too early.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Takes the number that the text begins with.
int take_number(std::string& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  int number = 0;
  std::from_chars(text.data(), text.data() + end, number);
  text.erase(0, std::min(end + 1, text.size()));
  return number;
}

/// "2,3", or "-".
std::string list_of(const std::vector<int>& ranks) {
  return ranks.empty() ? "-" : fmt::format("{}", fmt::join(ranks, ","));
}

/// Takes the list that the text begins with.
std::vector<int> take_list(std::string& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  std::string list = text.substr(0, end);
  text.erase(0, std::min(end + 1, text.size()));
  std::vector<int> ranks;
  if (list == "-") return ranks;
  std::replace(list.begin(), list.end(), ',', ' ');
  while (!list.empty()) ranks.push_back(take_number(list));
  return ranks;
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

void MpiMonitor::stop_world(const std::string& reason, ErrorCode code,
                            const std::string& text) noexcept {
  {
    std::unique_lock lock(mutex_);
    own_text_ = text;
    news_.push_back(fmt::format("A {} {}", static_cast<int>(code), one_line(reason)));
    channel_.wake();
    told_.wait_for(lock, 2 * kTimeToTell, [this] { return failure_->has_failed(); });
  }
  if (failure_->fail(reason, code, rank_)) tell(text);
}

void MpiMonitor::fail_rank(const std::exception_ptr& own) {
  if (!failure_->has_failed()) {
    stop_world(fmt::format("rank {} stopped: {}", rank_, failure_text(own)), failure_code(own),
               fmt::format("rank {}: {}", rank_, failure_text_with_hint(own)));
  }
  write_flight(*flight_, options_.flight_folder);
  const int teller = failure_->teller();
  if (const auto lost = failure_->lost(); !lost.empty()) {
    throw RanksLost(failure_->reason(), teller, lost);
  }
  if (teller == rank_) std::rethrow_exception(own);
  throw StoppedByPeer(failure_->code(), failure_->reason(), teller);
}

void MpiMonitor::tell(const std::string& text) const {
  if (options_.tell) options_.tell(text);
}

void MpiMonitor::tell_verdict(const Verdict& verdict) const {
  !verdict.lost.empty() && options_.tell_lost ? options_.tell_lost(verdict.text)
                                              : tell(verdict.text);
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
    const auto next = asked_.empty() ? next_beat : std::min(next_beat, asked_at_ + kTimeToAnswer);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    for (const auto& event : channel_.wait(std::max(left, 0ms))) handle(event);
    tell_news();
    if (!asked_.empty() && Clock::now() >= asked_at_ + kTimeToAnswer) {
      asked_.clear();
      judge_ranks();
    }
    if (Clock::now() >= next_beat) {
      beat();
      next_beat = Clock::now() + every;
    }
    if (chosen_ && !failure_->has_failed() && Clock::now() - chosen_at_ > kTimeToTell) {
      tell_for_chosen();
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
    if (rank_ != 0) {
      if (!first_has_ended_) lose_first();
    } else if (chosen_ && chosen_->rank == event.rank) {
      tell_for_chosen();
    } else if (!report.has_ended) {
      ask_ranks();
    }
    return;
  }
  std::string text = event.line.size() > 2 ? event.line.substr(2) : "";
  switch (event.line.empty() ? '?' : event.line[0]) {
    case 'R':
      report = rank_report_from(text);
      if (asked_.erase(event.rank) > 0 && asked_.empty()) judge_ranks();
      break;
    case 'Q': channel_.send(0, "R " + to_text(flight_->report()), true); break;
    case 'A': {
      const auto code = static_cast<ErrorCode>(take_number(text));
      choose({event.rank, code, text});
      break;
    }
    case 'T': {
      const std::lock_guard lock(mutex_);
      tell(own_text_);
      news_.emplace_back("D");
      break;
    }
    case 'D':
      if (chosen_ && chosen_->rank == event.rank) announce(*chosen_, event.rank);
      break;
    case 'F': {
      const int teller = take_number(text);
      const auto code = static_cast<ErrorCode>(take_number(text));
      auto lost = take_list(text);
      announce({teller, code, text, std::move(lost)}, teller);
      break;
    }
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
      std::string text = line.substr(2);
      const auto code = static_cast<ErrorCode>(take_number(text));
      choose({0, code, text});
    } else {
      for (int r = 1; r < size_; ++r) channel_.send(r, line, true);
    }
  }
}

void MpiMonitor::choose(Cause cause) {
  if (failure_->has_failed() || chosen_) return;
  chosen_ = std::move(cause);
  chosen_at_ = Clock::now();
  if (chosen_->rank != 0) return channel_.send(chosen_->rank, "T", true);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = own_text_;
  }
  tell(text);
  announce(*chosen_, 0);
}

void MpiMonitor::tell_for_chosen() {
  if (failure_->has_failed()) return;
  tell(chosen_->reason);
  announce(*chosen_, 0);
}

void MpiMonitor::announce(const Cause& cause, int teller) {
  if (failure_->has_failed()) return;
  if (rank_ == 0) {
    const auto code = static_cast<int>(cause.code);
    for (int r = 1; r < size_; ++r) {
      channel_.send(
          r,
          fmt::format("F {} {} {} {}", teller, code, list_of(cause.lost), one_line(cause.reason)),
          true);
    }
  }
  failure_->fail(cause.reason, cause.code, teller, cause.lost);
  failed_at_ = Clock::now();
  const std::lock_guard lock(mutex_);
  told_.notify_all();
}

void MpiMonitor::lose_first() {
  if (failure_->has_failed()) return;
  reports_[0].silent_seconds = seconds_since(heard_[0]);
  reports_[static_cast<std::size_t>(rank_)] = flight_->report();
  const Verdict verdict = judge(reports_, limit_).value();
  if (rank_ == 1) tell_verdict(verdict);
  announce({0, ErrorCode::peer, verdict.text, {0}}, 1);
}

void MpiMonitor::beat() {
  if (rank_ != 0) {
    if (options_.limit.count() > 0) channel_.send(0, "R " + to_text(flight_->report()));
    if (!first_has_ended_ && seconds_since(heard_[0]) > limit_) lose_first();
    return;
  }
  for (int r = 1; r < size_; ++r) channel_.send(r, "H");
  judge_ranks();
}

void MpiMonitor::ask_ranks() {
  if (failure_->has_failed() || chosen_) return;
  asked_.clear();
  for (int r = 1; r < size_; ++r) {
    const RankReport& report = reports_[static_cast<std::size_t>(r)];
    if (report.is_gone || report.has_ended) continue;
    asked_.insert(r);
    channel_.send(r, "Q", true);
  }
  asked_at_ = Clock::now();
  if (asked_.empty()) judge_ranks();
}

void MpiMonitor::judge_ranks() {
  if (failure_->has_failed() || chosen_ || !asked_.empty()) return;
  reports_[0] = flight_->report();
  for (int r = 1; r < size_; ++r) {
    reports_[static_cast<std::size_t>(r)].silent_seconds =
        seconds_since(heard_[static_cast<std::size_t>(r)]);
  }
  if (const auto verdict = judge(reports_, limit_)) {
    tell_verdict(*verdict);
    announce({verdict->rank, ErrorCode::peer, verdict->text, verdict->lost}, 0);
  }
}

void MpiMonitor::give_up_in_time() {
  if (!failure_->has_failed()) return;
  if (failed_at_ == Clock::time_point{}) failed_at_ = Clock::now();
  if (seconds_since(failed_at_) < options_.grace.count()) return;
  if (!options_.flight_folder.empty()) {
    try {
      flight_->write(options_.flight_folder / fmt::format("rank-{}.jsonl", rank_));
    } catch (const Error& error) {
      log_warn("the last calls of rank {} are lost: {}", rank_, error.what());
    }
  }
  channel_.flush(200ms);
  if (!options_.tell) log_line(LogLevel::error, failure_->reason());
  if (options_.give_up) options_.give_up(failure_->reason());
  std::_Exit(static_cast<int>(failure_->code()));
}

}  // namespace heddle
