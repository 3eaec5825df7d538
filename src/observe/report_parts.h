#pragma once

#include <string>
#include <vector>

#include "observe/chart.h"
#include "observe/report.h"

namespace heddle::observe {

// The parts of report_html, by subject. All return HTML.

/// When, where and by which command the run was made.
std::string run_facts(const RunReport& report);
/// A table of all starts, where there were several.
std::string starts_section(const RunReport& report);
/// Where the curves go over from one process to the next.
std::vector<ChartMark> resume_marks(const RunReport& report);

Chart loss_chart(const RunReport& report);
/// The later half of the curve; after the first steep fall the whole curve hides what happens
/// there.
Chart later_loss_chart(const Chart& whole);
std::string loss_section(const RunReport& report, const Chart& whole, const Chart& later);

/// Held-out loss by source of the data.
Chart sources_chart(const History& history);
/// That chart, with its legend and what each source reached; empty where there is one source only.
std::string sources_section(const History& history, const Chart& chart);

/// Of attention that ranks share: what they wait by layer, and how even their work is.
std::string attention_section(const AttentionFigures& attention);

/// How evenly experts are used, by layer over time, what was dropped, and how much of their
/// exchanges was hidden; empty without any.
std::string experts_section(const std::vector<ExpertLoadPoint>& points,
                            const std::vector<ExpertExchangeRow>& exchanges);

/// Who took part over time, why that changed, where state came from and what it cost; empty where
/// nothing changed.
std::string epochs_section(const std::vector<EpochRow>& epochs);

/// How fast ranks were beside others that do equal work, over time; empty without such.
std::string speeds_section(const RunReport& report);

/// A sixtieth of the run on either side: steady enough to read, short enough to show bends.
Curve smoothed(const Curve& curve);
Curve typical(const Curve& curve);
/// The last finite value, or NaN.
double last_finite(const Curve& curve);
/// "96.8 %", never rounded up: what is not there yet is not 100 %.
std::string percent(double share);
/// "12.3 ms", "1.23 s".
std::string short_time(double seconds);

}  // namespace heddle::observe
