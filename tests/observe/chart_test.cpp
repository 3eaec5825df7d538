#include "observe/chart.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/occurrences.h"

namespace heddle::observe {
namespace {

TEST(EscapeHtml, LeavesNoMarkupQuotesControlsOrInvalidBytes) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape_html("gr\xC3\xBC\xC3\x9F dich\n"), "gr\xC3\xBC\xC3\x9F dich\n");
  EXPECT_EQ(escape_html(std::string_view("a\0\x1b[0m\xFF\xE2\x82", 9)),
            "a\xEF\xBF\xBD\xEF\xBF\xBD[0m\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
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

TEST(RenderChart, MakesACurveOfOnePointVisible) {
  EXPECT_EQ(occurrences(render_chart(chart_with({{1, 0, 3}, {2, 0, NAN}})), "line lone"), 1U);
  EXPECT_EQ(occurrences(render_chart(chart_with({{1, 0, 3}, {2, 0, 2}})), "lone"), 0U);
}

TEST(RenderChart, SurvivesEmptyConstantAndInfiniteCurves) {
  for (const Curve& points :
       {Curve{}, Curve{{5, 0, 3}}, Curve{{1, 0, 0}, {2, 0, 0}}, Curve{{1, 0, INFINITY}}}) {
    const std::string html = render_chart(chart_with(points));
    EXPECT_EQ(html.find("nan"), std::string::npos) << html;
    EXPECT_EQ(html.find("inf"), std::string::npos) << html;
  }
}

TEST(RenderChart, DrawsALogarithmicAxisOfPositiveValuesOnly) {
  Chart chart = chart_with({{0, 0, 100}, {1, 1, 10}, {2, 2, 0}, {3, 3, 1}});
  chart.has_log_axis = true;
  chart.bound = 0.0;
  const std::string html = render_chart(chart);
  const std::string log = html.substr(html.find("drawing on-log"));
  for (const char* label : {">1</span>", ">10</span>", ">100</span>"}) {
    EXPECT_NE(log.find(label), std::string::npos) << label;
  }
  EXPECT_EQ(log.find("class=\"bound\""), std::string::npos) << "zero is not on the axis";
  EXPECT_EQ(html.find("inf"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  chart.series[0].points = {{0, 0, -1}, {1, 1, NAN}};
  EXPECT_EQ(render_chart(chart).find("on-log"), std::string::npos);
}

TEST(RenderChart, LeavesRoomForTheLabelOfABoundThatTheCurveFallsBelow) {
  Chart chart = chart_with({{0, 0, 3}, {1, 1, 0.99}});
  chart.height = 300;
  chart.bound = 1.0;
  chart.bound_label = "best";
  const std::string html = render_chart(chart);
  const std::string before = "bound-label\" style=\"top:";
  const double top = std::stod(html.substr(html.find(before) + before.size()));
  EXPECT_LE(top, 91) << "less than 27 pixels below";
}

TEST(RenderChart, NamesMarksOnlyWhereLabelsDoNotTouch) {
  Chart chart = chart_with({{0, 0, 3}, {100, 1, 1}});
  chart.height = 300;
  for (const std::int64_t step : {10, 12, 14, 50, 95}) {
    chart.marks.push_back({step, "at " + std::to_string(step), "<note>"});
  }
  const std::string html = render_chart(chart);
  EXPECT_EQ(occurrences(html, "class=\"mark\""), 5U);
  EXPECT_EQ(occurrences(html, "title=\"&lt;note&gt;\""), 5U);
  EXPECT_EQ(occurrences(html, "class=\"mark-label\""), 2U);
  EXPECT_NE(html.find(">at 14<"), std::string::npos) << "the last before room";
  EXPECT_NE(html.find(">at 50<"), std::string::npos);
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
