#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "observe/timeline.h"

namespace heddle::observe {
namespace {

/// What goes on beside a rank's own work has no room in its line.
bool is_shown(const TimelineBar& bar) {
  return bar.kind != TimelineKind::wait && bar.line == 0 && bar.end > bar.begin;
}

/// A bar in `width` characters, the last of them a space: "F0 ", "BW0-- ".
std::string cell(const TimelineBar& bar, std::size_t width) {
  std::string text = bar.label;
  if (bar.part > 0) {
    std::ranges::transform(text, text.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  text.resize(width - 1, '-');
  return text + " ";
}

}  // namespace

std::string timeline_text(const Timeline& timeline, int columns) {
  double end = timeline.until;
  int ranks = 0;
  for (const auto& bar : timeline.bars) {
    end = std::max(end, bar.end);
    ranks = std::max(ranks, bar.rank + 1);
  }
  // Every bar must hold its label and a space.
  double scale = 0.0;
  for (const auto& bar : timeline.bars) {
    if (!is_shown(bar)) continue;
    scale = std::max(scale, static_cast<double>(bar.label.size() + 1) / (bar.end - bar.begin));
  }
  const std::string margin = fmt::format("rank {} |", std::max(0, ranks - 1));
  const double length = std::ceil(end * scale - 1e-9);
  if (scale <= 0.0 || static_cast<double>(margin.size()) + length > columns) return {};

  std::vector<std::string> lines(static_cast<std::size_t>(ranks),
                                 std::string(static_cast<std::size_t>(length), '.'));
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  for (const auto& bar : timeline.bars) {
    if (!is_shown(bar)) continue;
    const std::size_t from = column(bar.begin), to = column(bar.end);
    lines[static_cast<std::size_t>(bar.rank)].replace(from, to - from, cell(bar, to - from));
  }
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("{:<{}}|{}\n", fmt::format("rank {}", rank), margin.size() - 1,
                        lines[static_cast<std::size_t>(rank)]);
  }
  return text;
}

}  // namespace heddle::observe
