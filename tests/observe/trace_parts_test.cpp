#include "observe/trace_parts.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

namespace fs = std::filesystem;

/// Steps first to last of a second each, from second 0 on.
Trace steps(std::int64_t first, std::int64_t last) {
  Trace trace;
  for (std::int64_t step = first; step <= last; ++step) {
    trace.add({.name = "step",
               .category = "action",
               .begin_seconds = static_cast<double>(step - first),
               .duration_seconds = 1.0,
               .step = step});
  }
  return trace;
}

std::vector<std::int64_t> steps_in(const Trace& trace) {
  std::vector<std::int64_t> found;
  for (const Span& span : trace.spans()) found.push_back(span.step);
  return found;
}

TEST(TraceParts, OfAResumedRunGoOnBehindTheOldOnesWithoutDoublingSteps) {
  const TemporaryFolder folder;
  {
    TraceParts parts(folder.path(), 0, 0);
    parts.add(steps(1, 3));
    const Trace next = steps(4, 6);
    Trace later;  // times count from the object's beginning
    for (Span span : next.spans()) {
      span.begin_seconds += 3;
      later.add(span);
    }
    parts.add(later);
  }
  TraceParts resumed(folder.path(), 5, 0);
  resumed.add(steps(6, 7));
  const Trace all = read_trace_parts(folder.path());
  EXPECT_EQ(steps_in(all), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  for (const Span& span : all.spans()) {
    EXPECT_NEAR(span.begin_seconds, static_cast<double>(span.step - 1), 1e-6);
  }
}

TEST(TraceParts, OfANewRunReplaceThoseOfAnOldOneAndNothingElse) {
  const TemporaryFolder folder;
  TraceParts(folder.path(), 0, 0).add(steps(1, 3));
  write_file_atomically(real_file_system(), folder.path() / "notes.json", "mine");
  const TraceParts fresh(folder.path(), 0, 0);
  EXPECT_TRUE(read_trace_parts(folder.path()).spans().empty());
  EXPECT_TRUE(fs::exists(folder.path() / "notes.json"));
}

TEST(TraceParts, KeepTheNewestUpToTheLimit) {
  const TemporaryFolder folder;
  TraceParts(folder.path(), 0, 0).add(steps(1, 10));
  const auto bytes_of_ten = fs::file_size(folder.path() / "run-000001.json");
  TraceParts parts(folder.path(), 0, 3 * bytes_of_ten);
  for (std::int64_t first = 1; first <= 91; first += 10) parts.add(steps(first, first + 9));
  const auto left = steps_in(read_trace_parts(folder.path()));
  EXPECT_EQ(left.back(), 100);
  EXPECT_GT(left.front(), 60);
  EXPECT_LT(left.front(), 90);
}

TEST(TraceParts, ThatAreDamagedDoNotKeepARunFromResuming) {
  const TemporaryFolder folder;
  TraceParts(folder.path(), 0, 0).add(steps(1, 3));
  write_file_atomically(real_file_system(), folder.path() / "run-000002.json", "{\"traceEv");
  TraceParts resumed(folder.path(), 3, 0);
  resumed.add(steps(4, 4));
  EXPECT_EQ(steps_in(read_trace_parts(folder.path())), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace heddle::observe
