#pragma once

namespace heddle::observe {

/// What a page (observe/page.h) contains beside its numbers: how it looks, and what its figures do
/// when there are scripts.
extern const char* const kReportStyle;
extern const char* const kChartScript;     ///< the read-out of curves
extern const char* const kTimelineScript;  ///< zoom, pan and read-out of timelines

}  // namespace heddle::observe
