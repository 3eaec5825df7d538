#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "observe/trace_parts.h"
#include "observe/trace_summary.h"

namespace heddle::cli {
namespace {

namespace fs = std::filesystem;

struct TraceOptions {
  fs::path run, simulated;
  int rows = 20;
  bool json = false;
};

/// A trace file, or all parts of a run folder's.
observe::TraceSummary read(const fs::path& path) {
  const bool is_run = fs::is_directory(path);
  const observe::Trace trace =
      is_run ? observe::read_trace_parts(path / "trace") : observe::read_trace(path);
  if (is_run && trace.spans().empty()) {
    throw Error(ErrorCode::data, fmt::format("{} has no trace/run-NNNNNN.json", path.string()),
                "train with observe.trace = true, which records them");
  }
  observe::TraceSummary summary = observe::summarize(trace);
  if (summary.rows.empty()) {
    throw Error(ErrorCode::data, fmt::format("{} has no spans", path.string()),
                "the run ended before its first step, or another program wrote it");
  }
  return summary;
}

template <class Report>
void print(const Report& report, const TraceOptions& options) {
  fmt::print("{}", options.json ? to_json(report).dump(2) + "\n"
                                : to_text(report, static_cast<std::size_t>(options.rows)));
}

void run(const TraceOptions& options) {
  observe::TraceSummary measured = read(options.run);
  if (options.simulated.empty()) return print(measured, options);
  print(observe::compare(std::move(measured), read(options.simulated)), options);
}

}  // namespace

void add_trace(Verb app) {
  const auto options = std::make_shared<TraceOptions>();
  Verb verb = app.add_verb("trace", "where the time of a run's steps goes, beside a simulation");
  verb.add_option("RUN", options->run, "run folder with a trace, or a trace file").required();
  verb.add_option("--compare", options->simulated,
                  "trace of a simulated step or of another run; largest differences first");
  verb.add_option("--rows", options->rows, "of the table, at most").show_default().positive();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
