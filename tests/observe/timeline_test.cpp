#include "observe/timeline.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "support/occurrences.h"

namespace heddle::observe {
namespace {

const Timeline kTwoRanks = {
    .description = "two ranks",
    .bars = {{.rank = 0, .label = "F0", .begin = 0, .end = 1},
             {.rank = 1, .label = "ra0", .kind = TimelineKind::wait, .begin = 0, .end = 1},
             {.rank = 1, .label = "F0", .begin = 1, .end = 2, .part = 1},
             {.rank = 1, .label = "BW0", .kind = TimelineKind::backward, .begin = 2, .end = 4},
             {.rank = 0, .label = "W0", .kind = TimelineKind::weights, .begin = 5, .end = 6}}};

TEST(TimelineText, HasALinePerRankWithDotsWhereItIsIdle) {
  EXPECT_EQ(timeline_text(kTwoRanks, 80),
            "rank 0 |F0 ............W0 \n"
            "rank 1 |...f0 BW0-- ......\n");
}

TEST(TimelineText, IsLeftOutWhereTheLinesWouldBeTooLong) {
  EXPECT_EQ(timeline_text(kTwoRanks, 26).size(), 2 * 27U);
  EXPECT_EQ(timeline_text(kTwoRanks, 25), "");
  EXPECT_EQ(timeline_text({}, 80), "");
}

TEST(Timeline, DrawsWhatIsDoneAndLeavesWaitingEmpty) {
  const std::string svg = render_timeline(kTwoRanks);
  EXPECT_EQ(occurrences(svg, "class=\"track\""), 2U);
  EXPECT_EQ(occurrences(svg, "<title>"), 4U);
  EXPECT_EQ(occurrences(svg, ">F0</text>"), 2U);
  EXPECT_EQ(occurrences(svg, "class=\"f later\""), 1U);
  EXPECT_EQ(occurrences(svg, ">forward</text>"), 1U);
  EXPECT_EQ(occurrences(svg, ">vocabulary</text>"), 0U);
  EXPECT_EQ(svg.find("ra0"), std::string::npos);
}

TEST(Timeline, EscapesTextAndNeedsNothingFromOutside) {
  Timeline timeline = kTwoRanks;
  timeline.description = "a \"b\" <c>";
  timeline.bars[0].label = "<script>";
  const std::string svg = render_timeline(timeline);
  EXPECT_NE(svg.find("aria-label=\"a &quot;b&quot; &lt;c&gt;\""), std::string::npos);
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(occurrences(svg, "http"), 1U);  // the name space
}

TEST(Timeline, OfManyBarsStaysSmall) {
  Timeline timeline;
  for (int i = 0; i < 100'000; ++i) {
    timeline.bars.push_back({.rank = 0, .label = "F", .begin = 1.0 * i, .end = i + 1.0});
  }
  EXPECT_LT(render_timeline(timeline).size(), 100'000U);
}

TEST(Timeline, MayEndBehindItsLastBar) {
  Timeline timeline = kTwoRanks;
  timeline.until = 12.0;
  EXPECT_NE(render_timeline(timeline).find(">12</text>"), std::string::npos);
  EXPECT_EQ(render_timeline(kTwoRanks).find(">12</text>"), std::string::npos);
}

TEST(Timeline, DrawsWhatTravelsThinBelowItsRank) {
  Timeline timeline = kTwoRanks;
  timeline.bars.push_back({.rank = 1,
                           .label = "dp",
                           .kind = TimelineKind::communication,
                           .begin = 2,
                           .end = 5,
                           .line = 1,
                           .bytes = 2048});
  const std::string svg = render_timeline(timeline);
  EXPECT_EQ(occurrences(svg, "height=\"4\""), 1U);
  EXPECT_EQ(occurrences(svg, "<title>dp: 2 to 5, 2.0 KiB</title>"), 1U);
  EXPECT_EQ(timeline_text(timeline, 80), timeline_text(kTwoRanks, 80));
}

TEST(Timeline, OfManyRanksHasLowRowsAndNamesSome) {
  Timeline timeline;
  for (int rank = 0; rank < 64; ++rank) {
    timeline.bars.push_back({.rank = rank, .label = "F0", .begin = 0, .end = 1});
  }
  const std::string svg = render_timeline(timeline);
  EXPECT_EQ(occurrences(svg, "class=\"track\""), 64U);
  EXPECT_EQ(occurrences(svg, ">rank "), 32U);
  EXPECT_EQ(occurrences(svg, ">F0</text>"), 0U);
}

TEST(TimelineFigure, HasEveryBarAsDataAndCannotEndItsScript) {
  Timeline timeline = kTwoRanks;
  timeline.bars[0].label = "</script>";
  timeline.bars[0].bytes = 64;
  const std::string html = timeline_figure(timeline);
  const std::string open = "<script type=\"application/json\">";
  const auto begin = html.find(open) + open.size();
  const Json data = parse_json(html.substr(begin, html.find("</script>", begin) - begin), "data");
  EXPECT_EQ(data["labels"][0], "</script>");
  EXPECT_EQ(data["bytes"][data["rows"][0][7].get<int>()], 64.0);
  // Rank, line, and six numbers for each of the bars that are drawn.
  ASSERT_EQ(data["rows"].size(), 2U);
  EXPECT_EQ(data["rows"][0].size(), 2U + 2 * 6);
  EXPECT_EQ(data["rows"][1].size(), 2U + 2 * 6);
  // Of six units in ten million ticks: the second bar begins four behind the first and takes one.
  EXPECT_EQ(data["rows"][0][11], 6666666);
  EXPECT_EQ(data["rows"][0][12], 1666667);
}

TEST(Timeline, WithoutBarsIsAnEmptyDrawing) {
  EXPECT_EQ(occurrences(render_timeline({}), "<rect"), 0U);
}

}  // namespace
}  // namespace heddle::observe
