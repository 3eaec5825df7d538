#include "parallel/step/tell_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>

#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

/// What the second of two stages tells behind its last backward pass, in letters: computations (c),
/// messages (s) and begins of reductions (r).
std::string end_of_step(std::int64_t coded_gradients, int zero) {
  const Schedule schedule = lower(make_schedule(Pipeline::one_f_one_b, {2, 2}));
  RankUnits units = plain_units(schedule);
  units.buckets = {{.owner = 1,
                    .over = {Axis::dp},
                    .zero = zero,
                    .elements = 8,
                    .coded_gradients = coded_gradients}};
  units.units[1].buckets = {0};
  std::string told;
  tell_step(schedule, 1, units, {}, [&](const StepOp& op) {
    if (op.kind == StepOp::Kind::compute) told += 'c';
    if (op.kind == StepOp::Kind::send) told += 's';
    if (op.kind == StepOp::Kind::reduce) told += 'r';
  });
  return told.substr(told.rfind('c'));
}

TEST(TellStep, EncodesGradientsBehindTheMessageThatAnotherStageWaitsFor) {
  EXPECT_EQ(end_of_step(0, 0), "crs");  // which takes no time of this rank
  EXPECT_EQ(end_of_step(4, 0), "csr");
  EXPECT_EQ(end_of_step(4, 1), "csr");
  EXPECT_EQ(end_of_step(4, 2), "crs");  // whole gradients are to be given back
}

/// One stage of `blocks` blocks, of which each has a bucket of its own, in one micro-batch or more.
struct Told {
  std::string order;                                 ///< c: a pass, e: beside experts, d: the rest
  std::map<int, std::vector<StepOp::Slice>> slices;  ///< by bucket, as they begin
  std::map<int, int> ended;                          ///< by bucket
  std::int64_t most_under_way = 0;  ///< elements of slices that were offered and not waited for
};
Told told_with(const SumWindows& windows, int microbatches, int zero, std::int64_t elements) {
  const int blocks = static_cast<int>(windows.size());
  const Schedule schedule = lower(make_schedule(Pipeline::one_f_one_b, {1, microbatches}));
  RankUnits units;
  units.stages = {{0, blocks}};
  for (int block = 0; block < blocks; ++block) {
    units.units.push_back({.buckets = {block}, .block = block});
    units.buckets.push_back({.owner = block,
                             .over = {Axis::dp},
                             .zero = zero,
                             .elements = elements,
                             .held = zero == 0 ? elements : elements / 4});
  }
  StepPolicy policy;
  policy.windows = windows;
  Told told;
  std::vector<int> passes(static_cast<std::size_t>(blocks), 0);
  std::deque<std::int64_t> under_way;
  tell_step(schedule, 0, units, policy, [&](const StepOp& op) {
    using Kind = StepOp::Kind;
    if (op.kind == Kind::compute && op.action->act != Act::f) {
      told.order += 'c';
      ++passes[static_cast<std::size_t>(op.what)];
    }
    if (op.kind == Kind::reduced) {
      ++told.ended[op.what];
      under_way.pop_front();
    }
    if (op.kind != Kind::reduce && op.kind != Kind::beside_experts && op.kind != Kind::beside_rest)
      return;
    told.order += op.kind == Kind::reduce ? 'r' : op.kind == Kind::beside_experts ? 'e' : 'd';
    told.slices[op.what].push_back(op.slice);
    under_way.push_back(op.kind == Kind::reduce ? 0 : op.slice.count() * (zero == 0 ? 1 : 4));
    told.most_under_way = std::max(
        told.most_under_way, std::accumulate(under_way.begin(), under_way.end(), std::int64_t{}));
    // Complete.
    EXPECT_EQ(passes[static_cast<std::size_t>(op.what)], microbatches);
  });
  return told;
}

TEST(TellStep, BeginsSlicesInTheirWindowsAndTheRestBehindTheLast) {
  // Blocks 2, 1 and 0 in turn: what is made by one waits for the window of the next.
  EXPECT_EQ(told_with({{128, 64}, {64, 0}, {64, 64}}, 1, 0, 256).order, "cecedcrr");
  // In the last micro-batch alone.
  EXPECT_EQ(told_with({{128, 64}, {64, 0}, {64, 64}}, 2, 0, 256).order, "ccccecedcrr");
  // A window may hold the end of one bucket and the beginning of the next.
  EXPECT_EQ(told_with({{320, 0}, {128, 0}, {0, 0}}, 1, 0, 256).order, "ceceecrr");
  EXPECT_EQ(told_with({{1 << 20, 0}, {0, 1 << 20}, {9, 9}}, 1, 0, 256).order, "cdcecr");
}

TEST(TellStep, SumsEveryElementOnce) {
  for (const int zero : {0, 1}) {
    for (const std::int64_t some : {1, 63, 100, 777, 5000}) {
      const std::int64_t elements = 4096, part = zero == 0 ? elements : elements / 4;
      const Told told =
          told_with({{some, 3 * some}, {0, some}, {some, 0}, {some, some}}, 2, zero, elements);
      for (int bucket = 0; bucket < 4; ++bucket) {
        std::int64_t begun = 0;
        for (const StepOp::Slice& slice : told.slices.at(bucket)) {
          EXPECT_EQ(slice.begin, begun);
          begun = slice.is_all() ? part : slice.end;
        }
        EXPECT_EQ(begun, part) << bucket << " " << some;
        EXPECT_EQ(told.ended.at(bucket), std::ssize(told.slices.at(bucket)));
      }
    }
  }
}

/// With ZeRO slices are brought together for their way, which takes memory until they are summed.
TEST(TellStep, HasSlicesOfTwoWindowsUnderWayWithZero) {
  constexpr std::int64_t kEach = 512;
  EXPECT_EQ(told_with(SumWindows(8, {kEach, kEach}), 1, 1, 4096).most_under_way, 2 * 2 * kEach);
  // In place they may be as many as there are.
  EXPECT_EQ(told_with(SumWindows(8, {kEach, kEach}), 1, 0, 4096).most_under_way, 7 * 2 * kEach);
}

TEST(SumWindows, AreReadAsTheyAreTold) {
  for (const SumWindows& windows :
       {SumWindows{}, {{0, 0}}, {{1, 2}, {0, 1 << 20}, {std::int64_t{1} << 40, 5}}}) {
    EXPECT_EQ(sum_windows_of(text_of(windows)), windows);
  }
}

}  // namespace
}  // namespace heddle
