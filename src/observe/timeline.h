#pragma once

#include <string>
#include <vector>

namespace heddle::observe {

/// What a rank spends a stretch of time on; gives the colour.
enum class TimelineKind { forward, backward, weights, vocabulary, communication, wait };

struct TimelineBar {
  int rank = 0;
  std::string label = {};  ///< short: it stands inside the bar where there is room
  TimelineKind kind = TimelineKind::forward;
  double begin = 0.0, end = 0.0;
  int part = 0;      ///< which of the rank's stages; those behind the first are lighter
  int line = 0;      ///< 0: what the rank does; from 1: what goes on beside it, drawn thin below
  double bytes = 0;  ///< that travel
};

/// What several ranks did in a step, simulated or measured. The bars of a rank's line do not
/// overlap.
struct Timeline {
  std::string description = {};  ///< for people who do not see the picture
  std::string unit = {};         ///< of begin and end, at the axis: "ms", or nothing
  std::vector<TimelineBar> bars = {};
  int every = 1;       ///< row i is of rank i * every, where not all are drawn
  double until = 0.0;  ///< end of the axis; 0: the last bar. For two timelines on one scale.
};

/// An <svg> element that needs nothing around it: a file of its own, or part of a page. Follows the
/// reader's light or dark setting. Where bars are too narrow to
/// be seen, one stands for several.
std::string render_timeline(const Timeline& timeline);

/// The same as a <figure> of a page (observe/page.h), whose script then draws it at the width there
/// is, zooms, pans, and says what is under the pointer. Holds every bar, in about 20 bytes each.
std::string timeline_figure(const Timeline& timeline);

/// A line of text per rank, at most `columns` wide, parts behind the first in lower case; "" where
/// the bars are too many for that.
std::string timeline_text(const Timeline& timeline, int columns);

}  // namespace heddle::observe
