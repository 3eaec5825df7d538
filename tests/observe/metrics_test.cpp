#include "observe/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace heddle::observe {
namespace {

struct Counting : Sink {
  explicit Counting(int* calls) : calls_(calls) {}
  std::string_view name() const override { return "counting"; }
  void on_step(const StepMetrics&) override { ++*calls_; }
  void on_eval(const EvalMetrics&) override { ++*calls_; }
  void on_event(const RunEvent&) override { ++*calls_; }
  void close() override { ++*calls_; }
  int* calls_;
};

struct Failing : Sink {
  explicit Failing(int* calls) : calls_(calls) {}
  std::string_view name() const override { return "failing"; }
  void on_step(const StepMetrics&) override {
    ++*calls_;
    throw std::runtime_error("disk full");
  }
  void on_eval(const EvalMetrics&) override { ++*calls_; }
  void on_event(const RunEvent&) override { ++*calls_; }
  void close() override { ++*calls_; }
  int* calls_;
};

TEST(SinkSet, DropsASinkThatFailsLogsItOnceAndKeepsTheOthers) {
  int good = 0, bad = 0;
  SinkSet sinks;
  sinks.add(std::make_unique<Failing>(&bad));
  sinks.add(std::make_unique<Counting>(&good));
  testing::internal::CaptureStderr();
  sinks.on_step({});
  sinks.on_step({});
  sinks.on_eval({});
  sinks.on_event(UpdateSkipped{1, "loss is not finite"});
  EXPECT_EQ(sinks.size(), 1u);
  sinks.close();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(good, 5);
  EXPECT_NE(log.find("failing metrics stop here"), std::string::npos);
  EXPECT_EQ(log.find("disk full"), log.rfind("disk full"));
}

TEST(StepPace, IsNotKnownBeforeTheFirstStep) {
  EXPECT_EQ(StepPace().seconds_per_step(), 0.0);
  EXPECT_EQ(StepPace().eta_seconds(100), std::numeric_limits<double>::infinity());
  EXPECT_EQ(StepPace().eta_seconds(0), 0.0);
}

TEST(StepPace, IsNotMovedByASlowFirstStepOrAPause) {
  StepPace pace;
  pace.add(60.0);
  for (int i = 0; i < 10; ++i) pace.add(0.5);
  pace.add(30.0);
  EXPECT_DOUBLE_EQ(pace.seconds_per_step(), 0.5);
  EXPECT_DOUBLE_EQ(pace.eta_seconds(100), 50.0);
  EXPECT_EQ(pace.eta_seconds(-1), 0.0);
}

TEST(StepPace, FollowsALastingChange) {
  StepPace pace;
  for (int i = 0; i < 200; ++i) pace.add(1.0);
  for (int i = 0; i < 64; ++i) pace.add(3.0);
  EXPECT_DOUBLE_EQ(pace.seconds_per_step(), 3.0);
}

}  // namespace
}  // namespace heddle::observe
