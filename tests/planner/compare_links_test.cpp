#include "planner/compare_links.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "planner/collectives.h"
#include "planner/measured_rows.h"
#include "planner/report.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

Job small_job() {
  return {.spec = gpt_spec(1024, 16, 12, 1024),
          .seq_len = 1024,
          .batch = 512,
          .stack = Stack::heddle(DType::bf16)};
}

GivenLinks link_of(double mbit, double latency) {
  return {.bytes_per_s = mbit * 1e6 / 8, .latency_s = latency, .text = "a link"};
}

const LinkRow& row_named(const LinkComparison& comparison, const std::string& what) {
  const auto found = std::ranges::find(comparison.rows, what, &LinkRow::what);
  EXPECT_NE(found, comparison.rows.end()) << what;
  return found == comparison.rows.end() ? comparison.rows.front() : *found;
}

TEST(CompareLinks, AdvisesToSendLessOverASlowLink) {
  const Job job = small_job();
  const PlanReport report = make_report("small", h200(), job, {.gpus = 16}, link_of(1000, 0.01));
  ASSERT_TRUE(report.links);
  const LinkComparison& links = *report.links;
  const LinkRow& plain = links.rows.front();
  EXPECT_EQ(plain.what, "plain");
  EXPECT_EQ(plain.seconds, report.plans.front().seconds);
  EXPECT_GT(links.advised, 0u);
  for (const LinkRow& row : links.rows) {
    EXPECT_DOUBLE_EQ(row.gain, plain.seconds / row.seconds) << row.what;
    EXPECT_FALSE(row.accuracy.empty()) << row.what;
  }
  const LinkRow& int8 = row_named(links, "gradients int8:128");
  EXPECT_GT(int8.gain, 1.2);
  EXPECT_LT(int8.sent_bytes, plain.sent_bytes);
  const LinkRow& signs = row_named(links, "onebit-adam");
  EXPECT_LE(signs.plan.zero, 1);
  EXPECT_LT(signs.run_gain, signs.gain) << "a run's first steps are plain";
  EXPECT_TRUE(
      std::ranges::any_of(links.rows, [](const LinkRow& row) { return row.sites.has_value(); }));
  EXPECT_NE(links.advice.find("times as fast"), std::string::npos) << links.advice;
}

TEST(CompareLinks, AdvisesNothingInsideAServer) {
  const Job job = small_job();
  const PlanReport report = make_report("small", h200(), job, {.gpus = 8}, link_of(1000, 0.01));
  EXPECT_EQ(report.links->advised, 0u);
  EXPECT_EQ(report.links->rows.front().sent_bytes, 0.0);
  EXPECT_TRUE(report.links->advice.starts_with("nothing is worth compressing"))
      << report.links->advice;
}

TEST(CompareLinks, TheAdviceIsWrittenAsARunFile) {
  const Job job = small_job();
  const PlanReport report = make_report("small", h200(), job, {.gpus = 16}, link_of(10, 0.05));
  const LinkRow& best = report.links->best();
  ASSERT_TRUE(best.sites) << best.what;  // nothing else is of use there
  const std::string text = plan_toml(report);
  for (const char* words :
       {"sites = 2\n", "[outer]\n", "codec = \"e3m0", "tokens_per_step = 524288"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

TEST(GivenLinks, TakeThePlaceOfTheOutermostTier) {
  const Machine machine = with_links(h200(), link_of(800, 0.02));
  ASSERT_EQ(machine.links.size(), 2u);
  EXPECT_DOUBLE_EQ(machine.links.back().bytes_per_s, 1e8 / 8) << "eight devices share it";
  EXPECT_DOUBLE_EQ(machine.links.back().latency_s, 0.02);
  EXPECT_EQ(devices_inside(machine), 8);
  Machine one = h200();
  one.links.pop_back();
  one.links.front().reach = std::numeric_limits<int>::max();
  EXPECT_EQ(devices_inside(with_links(one, link_of(800, 0.02))), 1);
  GivenLinks four = link_of(800, 0.02);
  four.devices = 4;
  EXPECT_EQ(devices_inside(with_links(one, four)), 4);
  EXPECT_THROW(with_links(h200(), four), Error);
}

TEST(GivenLinks, CarryWhatWasMeasuredOfExchangesAmongAll) {
  GivenLinks measured = link_of(800, 0.02);
  measured.is_content = true;
  EXPECT_EQ(with_links(h200(), measured).links.back().collective, 1.0);
  measured.exchange_bytes_per_s = 6e7;
  const Link link = with_links(h200(), measured).links.back();
  EXPECT_DOUBLE_EQ(link.collective, 0.6);
  EXPECT_DOUBLE_EQ(link.message, 1.0);
  measured.exchange_bytes_per_s = 1.1e8;  // by chance more than one alone
  EXPECT_DOUBLE_EQ(with_links(h200(), measured).links.back().collective, 1.0);
}

TEST(DirectLinks, WaitForOthersOnceAndTwiceForLargeSums) {
  Machine machine = with_links(h200(), link_of(800, 0.05));
  Link& link = machine.links.back();
  link.is_direct = true;
  link.collective = 1.0;
  const GroupShape four{4, 1}, two{2, 1};
  const double rate = link.bytes_per_s;
  const auto seconds = [&](CommOp op, const GroupShape& group, double bytes) {
    return collective_seconds(machine, op, group, bytes);
  };
  EXPECT_NEAR(seconds(CommOp::all_gather, four, 4e6), 0.05 + 3e6 / rate, 1e-9);
  EXPECT_NEAR(seconds(CommOp::all_to_all, four, 4e6), 0.05 + 3e6 / rate, 1e-9);
  EXPECT_NEAR(seconds(CommOp::reduce_scatter, four, 4e6), 0.05 + 3e6 / rate, 1e-9);
  EXPECT_NEAR(seconds(CommOp::all_reduce, four, 4e6), 0.1 + 6e6 / rate, 1e-9);
  EXPECT_NEAR(seconds(CommOp::all_reduce, four, 16), 0.05 + 48 / rate, 1e-9);
  // Of two ranks each sends the other a message.
  link.message = 0.5;
  EXPECT_NEAR(seconds(CommOp::all_reduce, two, 4e6), 0.05 + 4e6 / (0.5 * rate), 1e-9);
  EXPECT_NEAR(latency_seconds(machine, CommOp::all_reduce, four, 4e6), 0.1, 1e-12);
  EXPECT_NEAR(latency_seconds(machine, CommOp::all_reduce, four, 16), 0.05, 1e-12);
  // Of two servers with two ranks each, what stays inside does not count.
  EXPECT_NEAR(bytes_between_servers(machine, CommOp::all_gather, {4, 2}, 4e6), 2e6, 1e-6);
}

TEST(DirectLinks, ThatAreSlowLeaveProcessorsToComputation) {
  Machine machine = with_links(h200(), link_of(100, 0.05));
  machine.software.contention = 1.0;
  machine.device.memory_bytes_per_s = 8e9;
  const GroupShape two{2, 1};
  EXPECT_EQ(contention_on(machine, two), 1.0) << "a ring's processors are others";
  machine.links.back().is_direct = true;
  machine.links.back().bytes_per_s = 1e7;
  EXPECT_NEAR(contention_on(machine, two), 0.01, 1e-12);
  machine.links.back().bytes_per_s = 2e9;
  EXPECT_EQ(contention_on(machine, two), 1.0);
}

}  // namespace
}  // namespace heddle::planner
