#include <gtest/gtest.h>

#include "observe/bars.h"
#include "observe/page.h"
#include "observe/scatter.h"
#include "support/occurrences.h"

namespace heddle::observe {
namespace {

StackedBars two_bars() {
  return {.parts = {{"weights", 'a'}, {"gradients", 'c'}, {"nothing", 'd'}},
          .rows = {{.name = "rank 0", .parts = {30, 10, 0}, .total = "40"},
                   {.name = "rank <1>", .note = "last", .parts = {20, 0, 0}, .total = "20"}},
          .format = [](double value) { return std::to_string(static_cast<int>(value)); }};
}

TEST(StackedBars, ShareAScaleAndNameOnlyWhatIsThere) {
  const std::string html = render_bars(two_bars());
  EXPECT_EQ(occurrences(html, "width:75.000%"), 1U);
  EXPECT_EQ(occurrences(html, "width:25.000%"), 1U);
  EXPECT_EQ(occurrences(html, "width:50.000%"), 1U);
  EXPECT_EQ(occurrences(html, "title=\"weights: 30\""), 1U);
  EXPECT_EQ(occurrences(html, "rank &lt;1&gt;<small>last</small>"), 1U);
  EXPECT_EQ(occurrences(html, "nothing"), 0U);
}

TEST(StackedBars, LeaveRoomForTheLimit) {
  StackedBars bars = two_bars();
  bars.limit = 80;
  bars.limit_name = "all there is";
  const std::string html = render_bars(bars);
  EXPECT_EQ(occurrences(html, "width:37.500%"), 1U);
  EXPECT_EQ(occurrences(html, "left:100.000%"), 2U);
  EXPECT_EQ(occurrences(html, "all there is"), 1U);
}

TEST(StackedBars, OfNothingAreEmpty) {
  EXPECT_EQ(occurrences(render_bars({.format = [](double) { return std::string(); }}), "row"), 0U);
}

Scatter example() {
  return {.description = "points",
          .axes = "across, up",
          .low = {0, 0},
          .high = {10, 100},
          .dots = {{1, 50}, {2, 60}, {20, 60}},
          .dots_over = {{9, 99}},
          .points = {{1, 50, "first & best", ""}, {5, 25, "second", "over"}, {11, 5, "far", ""}},
          .chosen = Scatter::Point{5, 30, "taken", "chosen"},
          .limit = 8.0,
          .limit_name = "room"};
}

TEST(Scatter, DrawsWhatIsInRangeAndAStepLineThroughTheBest) {
  const std::string html = render_scatter(example());
  EXPECT_EQ(occurrences(html, "d=\"M100 500h0M200 400h0\""), 1U);
  EXPECT_EQ(occurrences(html, "class=\"cloud over\" d=\"M900 10h0\""), 1U);
  EXPECT_EQ(occurrences(html, "d=\"M100.0 500.0H500.0V750.0\""), 1U);
  EXPECT_EQ(occurrences(html, "<em>first &amp; best</em>"), 1U);
  EXPECT_EQ(occurrences(html, "far"), 0U);
  EXPECT_EQ(occurrences(html, "point chosen"), 1U);
  EXPECT_EQ(occurrences(html, "M800.0 0V1000"), 1U);
}

TEST(Page, EscapesItsTitleAndAllowsNothingFromOutside) {
  const std::string html = page_html({.kind = "test",
                                      .title = "<script>1",
                                      .summary = "\"2\" & more",
                                      .body = "<p>3</p>",
                                      .footer = "4"});
  EXPECT_EQ(occurrences(html, "<title>&lt;script&gt;1"), 1U);
  EXPECT_EQ(occurrences(html, "<h1>&lt;script&gt;1</h1>"), 1U);
  EXPECT_EQ(occurrences(html, "&quot;2&quot; &amp; more"), 1U);
  EXPECT_EQ(occurrences(html, "<p>3</p>"), 1U);
  EXPECT_EQ(occurrences(html, "default-src 'none'"), 1U);
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url("}) {
    EXPECT_EQ(occurrences(html, outside), 0U) << outside;
  }
}

}  // namespace
}  // namespace heddle::observe
