#include "simulator/play_local.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace heddle {
namespace {

/// The Gbit/s that table 4 of "Streaming DiLoCo with overlapping communication" (Douillard et al.,
/// arXiv 2501.18512) gives for a compute utilisation of 50, 80, 90, 95 and 99 %.
struct PublishedRow {
  int layers;
  double parameters, step_seconds;
  std::array<std::array<double, 5>, 5> gbit;  // by method, by level
};
constexpr std::array<double, 5> kLevels = {0.5, 0.8, 0.9, 0.95, 0.99};
const PublishedRow kPublished[] = {
    {24,
     1e9,
     0.1,
     {{{86.8, 152.6, 184.2, 222.3, 569.0},
       {1.4, 6.2, 13.3, 23.3, 86.8},
       {1.4, 5.2, 9.1, 16.0, 28.1},
       {1.4, 4.3, 6.2, 9.1, 11.0},
       {0.4, 0.9, 1.7, 2.0, 3.0}}}},
    {48,
     1e10,
     0.8,
     {{{104.8, 222.3, 222.3, 268.3, 471.5},
       {1.7, 7.5, 16.0, 33.9, 104.8},
       {1.7, 5.2, 9.1, 13.3, 19.3},
       {1.7, 3.6, 5.2, 6.2, 7.5},
       {0.4, 0.9, 1.4, 1.4, 1.7}}}},
    {108,
     1e11,
     4.9,
     {{{184.2, 323.8, 390.7, 390.7, 471.5},
       {3.0, 11.0, 23.3, 49.4, 184.2},
       {2.4, 6.2, 9.1, 11.0, 19.3},
       {1.7, 3.6, 4.3, 5.2, 5.2},
       {0.5, 0.9, 1.1, 1.1, 1.4}}}},
};

/// The five columns: data parallelism, DiLoCo, Streaming DiLoCo, with overlap, with 4 bits too.
LocalMethod column(const PublishedRow& row, std::size_t number) {
  LocalMethod method{
      .layers = row.layers, .parameters = row.parameters, .step_seconds = row.step_seconds};
  if (number >= 1) method.every = 100;
  if (number >= 2) method.fragments = row.layers / 3;
  if (number >= 3) method.delay = 1;
  if (number >= 4) method.bits = 4;
  return method;
}

constexpr int kGridPoints = 50;
double grid(int point) { return 0.1 * std::pow(1e4, point / (kGridPoints - 1.0)); }
int nearest_on_grid(double gbit) {
  return static_cast<int>(std::lround((kGridPoints - 1) * std::log(gbit / 0.1) / std::log(1e4)));
}

TEST(PlayLocal, EveryEntryOfThePublishedBandwidthTableIsWithinOneGridStep) {
  constexpr double kGbit = 1 << 30;  // see docs/studies/little-on-the-wire.md
  int entries = 0;
  for (const PublishedRow& row : kPublished) {
    for (std::size_t number = 0; number < row.gbit.size(); ++number) {
      const LocalMethod method = column(row, number);
      ASSERT_TRUE(problems_of(method).empty());
      int point = 0;
      for (std::size_t level = 0; level < kLevels.size(); ++level, ++entries) {
        while (point < kGridPoints &&
               play_local(method, {.bits_per_second = kGbit * grid(point)}).utilisation <
                   kLevels[level]) {
          ++point;
        }
        EXPECT_NEAR(point, nearest_on_grid(row.gbit[number][level]), 1)
            << row.layers << " layers, column " << number << ", " << kLevels[level] << ": "
            << grid(point) << " Gbit/s, published " << row.gbit[number][level];
      }
    }
  }
  EXPECT_EQ(entries, 75);
}

TEST(PlayLocal, AnExchangeThatIsWaitedForAddsWhatOfItIsNotHidden) {
  // One layer: nothing hides it. A step of 3 s, an exchange of 10 s every 5 steps.
  LocalMethod method{.layers = 1, .parameters = 100, .step_seconds = 3, .every = 5, .bits = 1};
  EXPECT_NEAR(play_local(method, {.bits_per_second = 10}).step_seconds, 3 + 10 / 5.0, 1e-9);
  EXPECT_NEAR(play_local(method, {.bits_per_second = 10, .latency = 5}).step_seconds, 6, 1e-9);
  // Two steps hide 6 s of it, four all of it.
  method.delay = 2;
  EXPECT_NEAR(play_local(method, {.bits_per_second = 10}).step_seconds, 3 + 4 / 5.0, 1e-9);
  method.delay = 4;
  EXPECT_NEAR(play_local(method, {.bits_per_second = 10}).utilisation, 1, 1e-9);
}

TEST(PlayLocal, ALinkThatIsTooSlowSetsTheTimeOfAStepWhateverTheDelay) {
  const LocalMethod method{.layers = 6,
                           .parameters = 600,
                           .step_seconds = 1,
                           .every = 10,
                           .fragments = 2,
                           .delay = 3,
                           .bits = 1};
  EXPECT_NEAR(play_local(method, {.bits_per_second = 10}).step_seconds, 60 / 10.0, 0.05 * 6);
}

TEST(PlayLocal, BytesFollowFromSitesBitsAndFragments) {
  LocalMethod method{.layers = 24, .parameters = 24e6, .every = 100, .fragments = 8, .bits = 4};
  EXPECT_DOUBLE_EQ(method.layer_bits(), 4e6);
  EXPECT_DOUBLE_EQ(method.bits_per_step(), 24 * 4e6 / 100);
  EXPECT_DOUBLE_EQ(method.largest_bits(), 3 * 4e6);
  method.sites = 4;
  EXPECT_DOUBLE_EQ(method.layer_bits(), 1.5 * 4e6);
}

TEST(PlayLocal, NamesEveryValueThatMakesNoSense) {
  const auto problems = problems_of({.layers = 4,
                                     .parameters = 0,
                                     .step_seconds = -1,
                                     .every = 2,
                                     .fragments = 3,
                                     .delay = 2,
                                     .bits = 0,
                                     .sites = 1});
  std::string all;
  for (const auto& problem : problems) all += problem + "\n";
  for (const char* text : {"parameters = 0", "step time = -1", "bits = 0", "sites = 1",
                           "fragments = 3 are more than a window has steps; use at most 2",
                           "delay = 2 is not less than every = 2"}) {
    EXPECT_NE(all.find(text), std::string::npos) << text << "\n" << all;
  }
  EXPECT_EQ(problems_of({.layers = 1 << 20, .every = 1 << 20}).size(), 1U);
}

}  // namespace
}  // namespace heddle
