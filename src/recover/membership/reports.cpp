#include "recover/membership/reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace heddle::recover {
namespace {

double in_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string at_work_with(const RankReport& own, int rank) {
  const RankReport::Open* found = nullptr;
  for (const RankReport::Open& call : own.open) {
    const bool is_with =
        is_point_to_point(call.op) ? call.peer == rank : std::ranges::count(call.ranks, rank) > 0;
    if (is_with && (!found || (call.holds_rank && !found->holds_rank))) found = &call;
  }
  if (found) return fmt::format("rank {} is in {}", own.rank, found->text);
  return own.last_call.empty() ? ""
                               : fmt::format("rank {} has just ended {}", own.rank, own.last_call);
}

Reports::Reports(std::size_t members, Time now) : of_(members) {
  for (std::size_t rank = 0; rank < members; ++rank) {
    of_[rank].report.rank = static_cast<int>(rank);
    of_[rank].at = now;
  }
}

void Reports::receive(std::size_t rank, const Status& status, RankReport report, Time now) {
  Of& of = of_[rank];
  if (status.sequence <= of.sequence) return;
  of.sequence = status.sequence;
  of.at = now;
  of.is_stepping = status.is_stepping;
  of.end = status.end;
  if (!status.report.empty()) of.report = std::move(report);
  of.report.rank = static_cast<int>(rank);
}

bool Reports::all_are_stepping(std::size_t self) const {
  for (std::size_t rank = 0; rank < of_.size(); ++rank) {
    if (rank != self && !of_[rank].is_stepping) return false;
  }
  return true;
}

bool Reports::is_waiting(std::size_t rank) const {
  return std::ranges::any_of(of_[rank].report.open,
                             [](const RankReport::Open& call) { return call.holds_rank; });
}

std::vector<RankReport> Reports::now(const RankReport& own, Time now) const {
  std::vector<RankReport> reports;
  for (const Of& of : of_) {
    reports.push_back(of.report);
    reports.back().silent_seconds = in_seconds(now - of.at);
    reports.back().has_ended = of.end != Status::End::none;
  }
  reports[static_cast<std::size_t>(own.rank)] = own;
  return reports;
}

std::optional<Verdict> Reports::verdict(const RankReport& own, Duration limit, Time now) const {
  return judge(this->now(own, now), in_seconds(limit));
}

std::string Reports::text_of_gone(std::size_t rank, const RankReport& own, Time now) const {
  std::vector<RankReport> reports = this->now(own, now);
  reports[rank].is_gone = true;
  reports[rank].has_ended = false;
  return judge(reports, std::numeric_limits<double>::infinity()).value().text;
}

}  // namespace heddle::recover
