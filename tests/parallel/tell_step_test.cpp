#include "parallel/step/tell_step.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace heddle
