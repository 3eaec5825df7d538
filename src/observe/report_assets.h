#pragma once

namespace heddle::observe {

// The fixed parts of report.html, apart from the code that fills it.
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace heddle::observe
