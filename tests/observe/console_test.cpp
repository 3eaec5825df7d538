#include "observe/sinks/console.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/log.h"

namespace heddle::observe {
namespace {

StepMetrics example() {
  StepMetrics m;
  m.step = 120;
  m.steps_total = 2000;
  m.loss = 3.4117;
  m.grad_norm = 0.8404;
  m.lr = 3e-4;
  m.step_seconds = 0.412;
  m.tokens_per_second = 318000;
  m.mfu = 0.412;
  m.memory_bytes = 1395864371;
  m.eta_seconds = 731;
  return m;
}

std::string captured(const auto& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(FormatStep, IsTheLineThatTheStyleGuideShows) {
  EXPECT_EQ(
      format_step(example()),
      "step 120/2000 | loss 3.412 | norm 0.84 | lr 3.0e-4 | 412 ms | 318k tok/s | MFU 41.2% | "
      "mem 1.3 GiB | ETA 12m");
}

TEST(FormatStep, ShowsTheMemoryLimitWhenThereIsOne) {
  StepMetrics m = example();
  m.memory_bytes = 65820898714;
  m.memory_limit_bytes = std::uint64_t{80} << 30;
  EXPECT_NE(format_step(m).find("| mem 61.3/80 GiB |"), std::string::npos);
}

TEST(FormatStep, LeavesOutWhatIsUnknownAndEndsWithoutAnEta) {
  StepMetrics m = example();
  m.mfu.reset();
  m.memory_bytes = 0;
  m.step = m.steps_total;
  EXPECT_EQ(format_step(m),
            "step 2000/2000 | loss 3.412 | norm 0.84 | lr 3.0e-4 | 412 ms | 318k tok/s");
}

TEST(FormatStep, SurvivesValuesThatAreNotFinite) {
  StepMetrics m = example();
  m.loss = m.grad_norm = std::numeric_limits<double>::quiet_NaN();
  m.lr = 0;
  m.tokens_per_second = m.eta_seconds = std::numeric_limits<double>::infinity();
  const std::string line = format_step(m);
  EXPECT_NE(line.find("loss nan | norm nan | lr 0 |"), std::string::npos);
  EXPECT_NE(line.find("ETA ?"), std::string::npos);
}

TEST(ConsoleSink, WithoutATerminalPrintsPlainLinesEveryNSteps) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {}, .line_every = 10, .redraw_seconds = 0});
    StepMetrics m = example();
    m.steps_total = 25;
    for (m.step = 1; m.step <= 25; ++m.step) sink.on_step(m);
    sink.close();
  });
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4);  // steps 1, 10, 20, 25
  EXPECT_EQ(out.find('\r'), std::string::npos);
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
}

TEST(ConsoleSink, PrintsNoStepsWhereNoneAreWanted) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {}, .line_every = 0});
    sink.on_step(example());
  });
  EXPECT_EQ(out, "");
}

TEST(ConsoleSink, ShowsTheWritingOfACheckpointOnlyWhileItLasts) {
  const auto save = [](bool is_terminal) {
    ConsoleSink sink({.terminal = {.is_terminal = is_terminal, .colors = false, .columns = 80}});
    sink.on_event(CheckpointRequested{100});
    sink.on_event(CheckpointDurable{100, 3.1, 2147483648u, "out/step-000100"});
  };
  const std::string lasting = "step 100: checkpoint durable in 3.1s (2.0 GiB): out/step-000100\n";
  EXPECT_EQ(captured([&] { save(false); }), lasting);
  const std::string live = "step 100: writing a checkpoint";
  const std::string blank = "\r" + std::string(live.size(), ' ') + "\r";
  EXPECT_EQ(captured([&] { save(true); }), "\r" + live + blank + lasting);
}

TEST(ConsoleSink, NamesASlowSiteOnceInAWhile) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {}, .line_every = 100});
    sink.on_event(SiteWasSlow{.step = 10, .site = 2, .seconds = 3.21, .window = 20.0});
    sink.on_event(SiteWasSlow{.step = 20, .site = 2, .seconds = 3.5, .window = 20.0});
    sink.on_event(SiteWasSlow{.step = 30, .site = 0, .seconds = 4.0, .window = 20.0});
    sink.on_event(SiteWasSlow{.step = 130, .site = 0, .seconds = 5.0, .window = 20.0});
  });
  EXPECT_EQ(out,
            "warning: step 10: site 2 kept others waiting for 3.2 s of the 20.0 s since they met "
            "before\n"
            "warning: step 30: site 0 kept others waiting for 4.0 s of the 20.0 s since they met "
            "before\n"
            "warning: step 130: site 0 kept others waiting for 5.0 s of the 20.0 s since they met "
            "before\n");
}

TEST(ConsoleSink, NamesSlowRanksAndThoseThatHaveRecovered) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {}, .line_every = 100});
    const RankPace slow{.rank = 3, .seconds = 0.0124, .usual = 0.008, .others = 7};
    const RankPace other{.rank = 5, .seconds = 0.016, .usual = 0.008, .others = 1};
    sink.on_event(PacesChanged{.step = 40, .slow = {slow}});
    sink.on_event(PacesChanged{.step = 50, .recovered = {other}});
    sink.on_event(PacesChanged{.step = 60, .slow = {slow, other}, .recovered = {slow}});
  });
  EXPECT_EQ(out,
            "warning: step 40: rank 3 is slow: a micro-batch takes it 12 ms a block, 1.55 times "
            "the median of the 7 other ranks with equal work\n"
            "step 50: rank 5 is no longer slow: a micro-batch takes it 16 ms a block, 2.00 times "
            "that of the other rank with equal work\n"
            "warning: step 60: ranks 3 (1.55 times), 5 (2.00 times) are slow: what a block takes "
            "them, over the median of ranks with equal work; rank 3 is no longer slow: a "
            "micro-batch takes it 12 ms a block, 1.55 times the median of the 7 other ranks with "
            "equal work\n");
}

TEST(ConsoleSink, OnATerminalRewritesOneLineWithinItsWidth) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {.is_terminal = true, .colors = false, .columns = 40},
                      .line_every = 1000,
                      .redraw_seconds = 0});
    StepMetrics m = example();
    for (m.step = 2; m.step <= 4; ++m.step) sink.on_step(m);
    sink.close();
  });
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);  // the first step's lasting line
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
  EXPECT_NE(out.find("\rstep 4/2000 | loss 3.412"), std::string::npos);
  const std::string live = out.substr(out.find('\n'));
  EXPECT_EQ(live.find("MFU"), std::string::npos);  // beyond 40 columns
}

TEST(ConsoleSink, LogLinesAppearAboveTheLiveLine) {
  const std::string out = captured([] {
    ConsoleSink sink({.terminal = {.is_terminal = true, .colors = true, .columns = 30},
                      .line_every = 1000,
                      .redraw_seconds = 0});
    sink.on_step(example());
    log_warn("disk is nearly full");
  });  // without close(), as when a failure ends the run
  const std::string blank = "\r" + std::string(29, ' ') + "\r";
  const std::string live = "\x1b[2mstep 120/2000 | loss 3.412 | \x1b[0m";
  EXPECT_EQ(out, format_step(example()) + "\n\r" + live + blank + "warning: disk is nearly full\n" +
                     live + blank);
}

TEST(ConsoleSink, TellsEventsInWords) {
  const std::string out = captured([] {
    ConsoleSink sink({});
    sink.on_eval({.step = 100, .tokens = 5, .loss = 1.5, .perplexity = 4.4817});
    sink.on_eval({.step = 200,
                  .loss = 1.5,
                  .perplexity = 4.4817,
                  .sources = {{"web", 1.25}, {"code", 2.0}}});
    sink.on_event(CheckpointDurable{100, 3.1, 2147483648u, "out/checkpoints/step-000100"});
    sink.on_event(UpdateSkipped{101, "loss is not finite"});
  });
  EXPECT_EQ(out,
            "step 100: held-out loss 1.5000 | perplexity 4.48\n"
            "step 200: held-out loss 1.5000 | perplexity 4.48 | web 1.2500, code 2.0000\n"
            "step 100: checkpoint durable in 3.1s (2.0 GiB): out/checkpoints/step-000100\n"
            "warning: step 101: update skipped: loss is not finite\n");
}

}  // namespace
}  // namespace heddle::observe
