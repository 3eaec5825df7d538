#include "observe/expert_load.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file_system.h"
#include "base/json.h"
#include "observe/heatmap.h"
#include "observe/report.h"
#include "observe/sinks/jsonl.h"
#include "support/occurrences.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

/// Two layers of four experts; of the second one is never chosen.
std::vector<ExpertLoad> load(std::int64_t busiest) {
  return {{.layer = 1, .counts = {10, 10, 10, 10}, .dropped = 0, .lost_tokens = 0},
          {.layer = 3, .counts = {busiest, 40 - busiest, 0, 0}, .dropped = 5, .lost_tokens = 2}};
}

TEST(ExpertLoad, IsTheBusiestOverTheMean) {
  const auto layers = load(30);
  EXPECT_EQ(layers[0].most_over_mean(), 1.0);
  EXPECT_EQ(layers[1].most_over_mean(), 3.0);
  EXPECT_EQ(layers[1].choices(), 40);
  EXPECT_EQ(ExpertLoad({.layer = 0, .counts = {0, 0}}).most_over_mean(), 1.0);
}

TEST(ExpertLoad, IsWrittenAndReadBackExactly) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  JsonlSink sink(path, std::nullopt);
  StepMetrics metrics;
  metrics.step = 1;
  metrics.expert_load = load(40840);
  sink.on_step(metrics);
  metrics.step = 2;
  metrics.expert_load = {};
  sink.on_step(metrics);
  sink.close();
  EXPECT_NE(read_text_file(path).find(
                "\"expert_load\":[{\"layer\":1,\"counts\":[10,10,10,10],\"dropped\":0,"
                "\"lost_tokens\":0},{\"layer\":3,\"counts\":[40840,-40800,0,0],\"dropped\":5,"
                "\"lost_tokens\":2}]}"),
            std::string::npos);
  const History history = read_history(path);
  ASSERT_EQ(history.loss.size(), 2u);
  ASSERT_EQ(history.expert_load.size(), 1u);
  EXPECT_EQ(history.expert_load[0].step, 1);
  EXPECT_EQ(history.expert_load[0].layers[1].counts,
            (std::vector<std::int64_t>{40840, -40800, 0, 0}));
  EXPECT_EQ(history.expert_load[0].layers[1].lost_tokens, 2);
}

TEST(ExpertLoad, ThatIsNoneIsLeftOut) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << R"({"step":1,"loss":1,"expert_load":7}
{"step":2,"loss":1,"expert_load":[{"layer":"x"}]}
{"step":3,"loss":1,"expert_load":[{"layer":1,"counts":[],"dropped":0,"lost_tokens":0}]}
{"step":4,"loss":1,"expert_load":[{"layer":1,"counts":[1,2],"dropped":0,"lost_tokens":0}]}
{"step":5,"loss":1,"expert_load":[]}
)";
  const History history = read_history(path);
  EXPECT_EQ(history.loss.size(), 5u);
  ASSERT_EQ(history.expert_load.size(), 1u);
  EXPECT_EQ(history.expert_load[0].step, 4);
}

RunReport report_of(int points) {
  RunReport report;
  report.title = "experts";
  for (int i = 1; i <= points; ++i) {
    report.history.loss.push_back({i, i, 2.0});
    report.history.expert_load.push_back({.step = i, .layers = load(30 - i % 10)});
  }
  return report;
}

TEST(ExpertLoad, IsDrawnByLayerOverTime) {
  const std::string html = report_html(report_of(3));
  EXPECT_NE(html.find("<section id=\"experts\">"), std::string::npos);
  // Two layers: three steps of loads and of dropped choices, and four experts.
  EXPECT_EQ(occurrences(html, "fill-opacity=\""), 2u * 2u * 3u + 2u * 4u);
  EXPECT_NE(html.find("2 unused"), std::string::npos);
  EXPECT_NE(html.find("were dropped for want of room"), std::string::npos);
  // A long run has no more columns than can be seen.
  EXPECT_EQ(occurrences(report_html(report_of(5000)), "fill-opacity=\""), 2u * 2u * 120u + 2u * 4u);
  EXPECT_EQ(report_html(report_of(0)).find("id=\"experts\""), std::string::npos);
}

TEST(ExpertLoad, IsInTheReportForPrograms) {
  const Json json = parse_json(report_json(report_of(3)), "report.json");
  const Json& layer = json["experts"]["by_layer"][1];
  EXPECT_EQ(layer["layer"], 3);
  EXPECT_EQ(layer["most_over_mean"], (std::vector<double>{2.9, 2.8, 2.7}));
  EXPECT_EQ(layer["last_counts"], (std::vector<int>{27, 13, 0, 0}));
  EXPECT_EQ(layer["dropped"], (std::vector<int>{5, 5, 5}));
  EXPECT_EQ(json["experts"]["step"], (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(parse_json(report_json(report_of(0)), "report.json")["experts"].is_null());
}

TEST(ExpertExchanges, AreShownByRankWhereThereAreAny) {
  RunReport report = report_of(3);
  EXPECT_EQ(report_html(report).find("Exchanges of rows by rank"), std::string::npos);
  report.expert_exchanges = {{.rank = 0, .exposed = 0.3, .hidden = 0.1},
                             {.rank = 1, .exposed = 0.1, .hidden = 0.5}};
  const std::string html = report_html(report);
  EXPECT_NE(html.find("Exchanges of rows by rank"), std::string::npos);
  EXPECT_NE(html.find("40.0 % of that exposed"), std::string::npos);
  EXPECT_NE(html.find("600 ms"), std::string::npos);
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_EQ(json["experts"]["exchanges_by_rank"][1]["hidden_seconds"], 0.5);
}

TEST(Heatmap, ColoursByTheDistanceFromTheMiddleAndEscapes) {
  Heatmap map;
  map.description = "a <map>";
  map.rows = {{"<b>", {{0.0, "n\"1"}, {1.0, ""}, {9.0, ""}}, ""}};
  map.most = 3;
  const std::string html = render_heatmap(map);
  EXPECT_NE(html.find("class=\"less\" x=\"0\" width=\"10\" height=\"10\" fill-opacity=\"1.000\""),
            std::string::npos);
  EXPECT_NE(html.find("fill-opacity=\"0.000\""), std::string::npos);
  EXPECT_EQ(occurrences(html, "class=\"more\""), 2u);
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(html.find("n\"1"), std::string::npos);
}

}  // namespace
}  // namespace heddle::observe
