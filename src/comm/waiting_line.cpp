#include "comm/waiting_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace heddle {

std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t kMostParts = 20;
  std::vector<std::string> parts;
  std::size_t told = 0;
  for (std::size_t i = 0; i < ranks.size() && parts.size() < kMostParts;) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < i + 2) last = i;  // "1, 2" rather than "1-2"
    parts.push_back(last == i ? fmt::format("{}", ranks[i])
                              : fmt::format("{}-{}", ranks[i], ranks[last]));
    told += last - i + 1;
    i = last + 1;
  }
  if (told < ranks.size()) parts.push_back(fmt::format("{} more", ranks.size() - told));
  if (parts.size() < 2) return parts.empty() ? "" : parts.front();
  const std::string end = parts.back();
  parts.pop_back();
  return fmt::format("{} and {}", fmt::join(parts, ", "), end);
}

WaitingLine::WaitingLine(std::chrono::duration<double> limit, std::chrono::seconds pause)
    : limit_(limit), pause_(pause), terminal_(observe::stderr_terminal(true)) {}

WaitingLine::~WaitingLine() {
  if (terminal_.is_terminal && has_shown_) set_status_line("", 0);
}

double WaitingLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void WaitingLine::show(const std::string& text) {
  const double now = seconds();
  if (now < next_ || (!terminal_.is_terminal && pause_.count() == 0)) return;
  const std::string limit =
      limit_.count() > 0 ? fmt::format(" of at most {:.0f} s", limit_.count()) : " s";
  const std::string line = fmt::format("{}, {:.0f}{}", text, now, limit);
  has_shown_ = true;
  if (terminal_.is_terminal) {
    const auto columns = static_cast<std::size_t>(std::max(20, terminal_.columns - 1));
    set_status_line(line.substr(0, columns), std::min(line.size(), columns));
  } else {
    log_line(LogLevel::info, line);
    next_ = now + (now < 60 ? static_cast<double>(pause_.count()) : 30.0);
  }
}

}  // namespace heddle
