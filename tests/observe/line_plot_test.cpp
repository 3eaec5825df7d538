#include "observe/line_plot.h"

#include <gtest/gtest.h>

namespace heddle::observe {
namespace {

TEST(LinePlot, DrawsEveryLineWithinTheFrameAndEscapesNames) {
  const std::string svg = render_line_plot(
      {.title = "a & b",
       .across = "x",
       .up = "%",
       .high = 100,
       .lines = {{"one", {{0.1, 0}, {1000, 100}}}, {"<two>", {{1, 50}, {10, 250}}}}});
  for (const char* text :
       {"a &amp; b", "&lt;two&gt;", ">0.1<", ">1,000<", "M48.0 294.0L736.0 64.0", "L392.0 64.0"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  }
}

TEST(LinePlot, IsDrawnWithoutPoints) {
  const std::string svg = render_line_plot({.title = "t", .across = "x", .up = "y"});
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace heddle::observe
