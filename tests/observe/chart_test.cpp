#include "observe/chart.h"

#include <gtest/gtest.h>

#include <cmath>

namespace heddle::observe {
namespace {

TEST(EscapeHtml, LeavesNoMarkupQuotesControlsOrInvalidBytes) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape_html("gr\xC3\xBC\xC3\x9F dich\n"), "gr\xC3\xBC\xC3\x9F dich\n");
  EXPECT_EQ(escape_html(std::string_view("a\0\x1b[0m\xFF\xE2\x82", 9)),
            "a\xEF\xBF\xBD\xEF\xBF\xBD[0m\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 1200, 5).values,
            (std::vector<double>{0, 200, 400, 600, 800, 1000, 1200}));
  EXPECT_EQ(nice_ticks(1.37, 1.68, 3).spacing, 0.1);
  EXPECT_EQ(nice_ticks(-3, 3, 3).values, (std::vector<double>{-2, 0, 2}));
}

TEST(NiceTicks, OfNoRangeAreNone) {
  EXPECT_TRUE(nice_ticks(2, 2, 5).values.empty());
  EXPECT_TRUE(nice_ticks(0, INFINITY, 5).values.empty());
  EXPECT_TRUE(nice_ticks(NAN, 1, 5).values.empty());
}

TEST(FormatTick, GivesTheDigitsTheSpacingNeeds) {
  EXPECT_EQ(format_tick(0, 1), "0");
  EXPECT_EQ(format_tick(1.5, 0.5), "1.5");
  EXPECT_EQ(format_tick(2, 0.25), "2.0");
  EXPECT_EQ(format_tick(1500, 500), "1,500");
  EXPECT_EQ(format_tick(20000, 10000), "20k");
  EXPECT_EQ(format_tick(5000, 5000), "5k");
  EXPECT_EQ(format_tick(10500, 500), "10,500");
  EXPECT_EQ(format_tick(2500000, 500000), "2.5M");
  EXPECT_EQ(format_tick(3e-4, 1e-4), "3e-4");
  EXPECT_EQ(format_tick(0.002, 0.001), "0.002");
  EXPECT_EQ(format_tick(-0.5, 0.5), "-0.5");
}

Chart chart_with(Curve points) {
  return {.id = "c",
          .description = "d",
          .height = 200,
          .series = {{"value", "line", std::move(points)}}};
}

TEST(RenderChart, DrawsAGapWhereAValueIsNotFinite) {
  const std::string html =
      render_chart(chart_with({{0, 0, 1}, {1, 1, 2}, {2, 2, NAN}, {3, 3, 1}, {4, 4, 2}}));
  const auto path = html.substr(html.find("class=\"line\""));
  const std::string strokes = path.substr(0, path.find("/>"));
  EXPECT_EQ(std::count(strokes.begin(), strokes.end(), 'M'), 2);
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(RenderChart, SurvivesEmptyConstantAndInfiniteCurves) {
  for (const Curve& points :
       {Curve{}, Curve{{5, 0, 3}}, Curve{{1, 0, 0}, {2, 0, 0}}, Curve{{1, 0, INFINITY}}}) {
    const std::string html = render_chart(chart_with(points));
    EXPECT_EQ(html.find("nan"), std::string::npos) << html;
    EXPECT_EQ(html.find("inf"), std::string::npos) << html;
  }
}

TEST(RenderChart, SaysWhenASpikeRunsOutOfView) {
  Curve points;
  for (int i = 0; i < 500; ++i) points.push_back({i, i, 1.0 + 0.001 * i});
  EXPECT_EQ(render_chart(chart_with(points)).find("out of view"), std::string::npos);
  points[250].value = 77;
  EXPECT_NE(render_chart(chart_with(points)).find("Peaks up to 77 run out of view"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle::observe
