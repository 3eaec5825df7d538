#include "simulator/play_experts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace heddle {
namespace {

/// Random durations, also none, and gather and scatter that differ.
TEST(PlayExperts, TheRecurrenceIsWhatIsPlayedTaskByTask) {
  for (std::uint64_t i = 0; i < 500; ++i) {
    const auto any = [&](std::uint64_t what) {
      return random_u64(i, 50 + what) % 8 == 0 ? 0.0 : random_uniform(i, what);
    };
    const ExpertsSeconds seconds{.exchange = any(0),
                                 .gather = any(1),
                                 .expert = any(2),
                                 .scatter = any(3),
                                 .gradients = 4 * any(4)};
    const ExpertsPass pass =
        make_experts_pass({.degree = 1 + static_cast<int>(random_u64(i, 9) % 9),
                           .sends_gradients = i % 3 != 0,
                           .has_one_network = i % 2 == 0});
    const std::vector<PlayedTask> played = play_experts(pass, seconds);
    const std::vector<double> ends = end_times(pass, seconds);
    ASSERT_EQ(played.size(), ends.size());
    for (std::size_t task = 0; task < ends.size(); ++task) {
      ASSERT_NEAR(played[task].end, ends[task], 1e-12) << "task " << task << ", case " << i;
      ASSERT_NEAR(played[task].end - played[task].begin, seconds.of(pass[task].kind), 1e-12);
    }
  }
}

}  // namespace
}  // namespace heddle
