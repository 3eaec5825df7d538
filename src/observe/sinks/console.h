#pragma once

#include "base/clock.h"
#include "observe/metrics.h"
#include "observe/terminal.h"

namespace heddle::observe {

struct ConsoleOptions {
  Terminal terminal = {};
  /// Lasting lines: every so many steps, the first and the last; 0: none.
  std::int64_t line_every = 10;
  double redraw_seconds = 0.1;  ///< the live line changes at most this often
};

/// Lines for people, through the log (so they also reach log.txt). On a terminal a live line below
/// them shows the newest step.
class ConsoleSink : public Sink {
 public:
  explicit ConsoleSink(const ConsoleOptions& options) : options_(options) {}
  /// Removes the live line also when a failure ends the run before close().
  ~ConsoleSink() override { close(); }
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  std::string_view name() const override { return "console"; }
  void on_step(const StepMetrics& metrics) override;
  void on_eval(const EvalMetrics& metrics) override;
  void on_event(const RunEvent& event) override;
  void close() final;

 private:
  void draw_live(const StepMetrics& metrics);
  void show_live(std::string line);

  ConsoleOptions options_;
  Stopwatch since_draw_;
  bool has_live_line_ = false;
  bool has_printed_ = false;
  std::int64_t met_ = 0;             // the step of the last line about sites
  std::optional<SiteWasSlow> slow_;  // of the last line about a slow one
};

/// "step 120/2000 | loss 3.412 | norm 0.84 | lr 3.0e-4 | 412 ms | 318k tok/s | MFU 41.2% |
/// mem 1.3 GiB | ETA 12m"; the parts that are unknown are left out.
std::string format_step(const StepMetrics& metrics);

}  // namespace heddle::observe
