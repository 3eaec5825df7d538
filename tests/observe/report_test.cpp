#include "observe/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "support/occurrences.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

RunReport example() {
  RunReport report;
  report.title = "weaver";
  report.model = "llama, 3.4M parameters";
  report.settings = {{"model.width", "192"}, {"train.steps", "400"}};
  for (int i = 1; i <= 400; ++i) {
    const std::int64_t tokens = i * 1024;
    report.history.loss.push_back({i, tokens, 1.5 + 4 * std::exp(-i / 50.0)});
    report.history.grad_norm.push_back({i, tokens, 0.5});
    report.history.lr.push_back({i, tokens, 1e-3});
    report.history.tokens_per_second.push_back({i, tokens, 31000});
    if (i % 100 == 0) report.history.eval_loss.push_back({i, tokens, 1.6});
  }
  report.best_possible_loss = 1.425;
  report.memory = {{"parameters", 13 << 20, 13 << 20}, {"activations", 100 << 20, 98 << 20}};
  report.memory_total = {"total", 111 << 20, 110 << 20};
  report.peak_resident_bytes = 200 << 20;
  report.communication = {{"dp", "all_reduce", 400, 400, 5 << 20, 5 << 20},
                          {.axis = "tp",
                           .operation = "all_gather",
                           .predicted_calls = 800,
                           .counted_calls = 801,
                           .predicted_bytes = 6 << 20,
                           .counted_bytes = (6 << 20) + 2048,
                           .predicted_payload = 6 << 20,
                           .counted_payload = (6 << 20) + 2048}};
  report.samples = {{400, "the weaver ", "lifts the red thread"}};
  report.warnings = {"2 updates were skipped"};
  report.totals = {400, 409600, 132, 1.512};
  return report;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReportHtml, SaysWhatDocumentsDidNotNeed) {
  RunReport report = example();
  report.communication = {{"cp", "send", 80, 44, 6 << 20, 2 << 20, true}};
  EXPECT_TRUE(contains(report_html(report), "MiB, by documents"));
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_EQ(json["communication"]["cp"]["send"]["predicted"]["is_at_most"], true);
  // More than predicted is an error with documents, too.
  report.communication.front().counted_bytes = 7 << 20;
  EXPECT_FALSE(contains(report_html(report), "by documents"));
}

TEST(ReportHtml, LoadsNothingFromAnywhere) {
  const std::string html = report_html(example());
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url(", "<link"}) {
    EXPECT_FALSE(contains(html, outside)) << outside;
  }
  EXPECT_TRUE(contains(html, "default-src 'none'"));
}

TEST(ReportHtml, HasEverySectionAndItsNumbers) {
  const std::string html = report_html(example());
  for (const char* part : {"<h1>weaver</h1>",
                           "llama, 3.4M parameters",
                           "id=\"loss\"",
                           "id=\"loss-later\"",
                           "id=\"throughput\"",
                           "id=\"lr\"",
                           "id=\"norm\"",
                           "id=\"memory\"",
                           "id=\"communication\"",
                           "id=\"settings\"",
                           "id=\"samples\"",
                           "409.6k",
                           "1.512",
                           "2m12s",
                           "31.0k",
                           "200.0 MiB",
                           "100.0 MiB",
                           "98.0 MiB",
                           "2 updates were skipped",
                           "<mark>the weaver </mark>lifts",
                           "prefers-color-scheme: dark",
                           "name=\"viewport\""}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
}

TEST(ReportHtml, TellsTheGapToTheBestPossibleLossInNatsAndBesideItAsShareOfTheWay) {
  RunReport report = example();
  report.history.loss.front().value = 5.425;
  const std::string html = report_html(report);
  EXPECT_TRUE(contains(html,
                       "The held-out loss reached <b>1.600</b>, <b>0.175 nats above</b> the best "
                       "possible 1.425, the entropy of the source: <b>95.6 % of the way</b>"));
  EXPECT_TRUE(contains(html, "<dt>Above the best</dt><dd>0.175<small>nats; 95.6 % of "));
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_NEAR(json["above_best_possible"]["nats_per_token"].get<double>(), 0.175, 1e-9);
  EXPECT_NEAR(json["above_best_possible"]["share_of_the_way"].get<double>(), 0.95625, 1e-9);
}

TEST(ReportHtml, NeverRoundsTheWayToTheBestPossibleLossUpToAllOfIt) {
  RunReport report = example();
  report.history.eval_loss.back().value = *report.best_possible_loss + 0.0006;
  EXPECT_TRUE(contains(report_html(report), "0.001 nats above</b>"));
  EXPECT_TRUE(contains(report_html(report), "<b>99.9 % of the way</b>"));
}

TEST(ReportHtml, SaysWhenTheLossIsBelowTheBestPossibleOrThatIsNotKnown) {
  RunReport report = example();
  report.history.eval_loss.back().value = 1.42;
  EXPECT_TRUE(contains(report_html(report), "0.005 below"));
  EXPECT_FALSE(contains(report_html(report), "of the way"));
  report.best_possible_loss.reset();
  EXPECT_FALSE(contains(report_html(report), "best possible"));
  EXPECT_TRUE(parse_json(report_json(report), "report.json")["above_best_possible"].is_null());
}

TEST(ReportHtml, SaysWhenWhereAndHowTheRunWasMade) {
  RunReport report = example();
  report.starts = {{.step = 0,
                    .time = "2026-11-15T09:30:00Z",
                    .host = "loom",
                    .device = "a processor",
                    .version = "0.3.0",
                    .command = "heddle train 'a b.toml'",
                    .ranks = 4,
                    .threads = 2}};
  report.ended = "2026-11-15T10:30:00Z";
  const std::string html = report_html(report);
  for (const char* part :
       {"<dt>Started</dt><dd>2026-11-15 09:30:00 UTC</dd>",
        "<dt>Ended</dt><dd>2026-11-15 10:30:00 UTC</dd>", "<dt>Host</dt><dd>loom</dd>",
        "<dt>Device</dt><dd>a processor</dd>", "<dd>4 ranks of 2 threads each</dd>",
        "<dd>heddle 0.3.0</dd>", "<code>heddle train &#39;a b.toml&#39;</code>"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
  EXPECT_FALSE(contains(html, "id=\"starts\"")) << "one start needs no table";
  EXPECT_FALSE(contains(html, "class=\"mark\""));
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_EQ(json["starts"][0]["host"], "loom");
  EXPECT_EQ(json["starts"][0]["ranks"], 4);
  EXPECT_EQ(json["ended"], "2026-11-15T10:30:00Z");
}

TEST(ReportHtml, ShowsWhoTookPartAndWhatItCost) {
  RunReport report = example();
  report.epochs = {{.number = 0, .members = 4, .mesh = "dp=2 tp=1 pp=2"}};
  EXPECT_FALSE(contains(report_html(report), "id=\"members\"")) << "nothing changed";
  report.epochs.push_back({.number = 1,
                           .step = 120,
                           .time = "2026-11-15T10:00:00Z",
                           .members = 3,
                           .spares = 1,
                           .mesh = "dp=1 tp=1 pp=2",
                           .cause = "rank 2 <gone>",
                           .source = "stage 1 from its replica on rank 3",
                           .detect = 1.0,
                           .agree = 0.5,
                           .rebuild = 0.25,
                           .restore = 0.125,
                           .redo = 2.0});
  const std::string html = report_html(report);
  for (const char* part : {"lost or came 1 time", "it cost 3.88 s in all", "rank 2 &lt;gone&gt;",
                           "stage 1 from its replica on rank 3", "step made again"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
  const Json epoch = parse_json(report_json(report), "report.json")["epochs"][1];
  EXPECT_EQ(epoch["step"], 120);
  EXPECT_EQ(epoch["spares"], 1);
  EXPECT_EQ(epoch["seconds"]["redo"], 2.0);
}

TEST(ReportHtml, MarksResumesOnEveryCurveAndListsThem) {
  RunReport report = example();
  report.starts = {{.step = 0, .time = "2026-11-15T09:00:00Z"},
                   {.step = 100, .time = "2026-11-15T10:00:00Z"},
                   {.step = 300, .time = "2026-11-15T11:00:00Z"},
                   {.step = 300, .time = "2026-11-15T12:00:00Z"}};
  const std::string html = report_html(report);
  constexpr std::size_t kWholeCurves = 4;  // the later half begins after step 100
  EXPECT_EQ(occurrences(html, "title=\"resumed at step 100, 2026-11-15 10:00:00 UTC\""),
            kWholeCurves);
  EXPECT_EQ(occurrences(html,
                        "title=\"resumed at step 300, 2026-11-15 11:00:00 UTC, and again "
                        "2026-11-15 12:00:00 UTC\""),
            kWholeCurves + 1);
  EXPECT_EQ(occurrences(html, "<span class=\"mark-label\" style=\"left:25.00%\">resumed at 100"),
            1U);
  EXPECT_EQ(occurrences(html, "<td class=\"when\">"), 4U);
}

TEST(ReportHtml, LetsTheReaderChooseTheAxisAndStartsWithTheOneThatReadsBetter) {
  RunReport report = example();
  EXPECT_TRUE(contains(report_html(report), "id=\"axis-linear\" checked>"));
  EXPECT_EQ(occurrences(report_html(report), "class=\"drawing on-log\""), 2U);
  for (auto& point : report.history.loss) point.value = 6 * std::exp(-point.step / 100.0) + 0.01;
  EXPECT_TRUE(contains(report_html(report), "id=\"axis-log\" checked>"));
  for (auto& point : report.history.loss) point.value = std::nan("");
  EXPECT_FALSE(contains(report_html(report), "id=\"axis-log\""));
}

TEST(ReportHtml, MarksTrafficThatDiffersFromThePrediction) {
  const std::string html = report_html(example());
  EXPECT_TRUE(contains(html, "<td class=\"same\">exact</td>"));
  EXPECT_TRUE(contains(html, "<td class=\"differs\">+2.0 KiB</td>"));
}

TEST(ReportHtml, EscapesAllTextOfTheRun) {
  const std::string evil = "</script><script>alert('x')</script>\"&\xFF";
  RunReport report = example();
  report.title = report.model = evil;
  report.settings = {{evil, evil}, {"model." + evil, evil}};
  report.memory[0].tag = evil;
  report.communication[0].axis = report.communication[0].operation = evil;
  report.samples = {{1, evil, evil}};
  report.warnings = {evil};
  report.starts = {
      {.step = 0, .time = evil, .host = evil},
      {.step = 200, .time = evil, .host = evil, .device = evil, .version = evil, .command = evil}};
  report.ended = evil;
  const std::string html = report_html(report);
  EXPECT_FALSE(contains(html, "alert('x')"));
  EXPECT_FALSE(contains(html, "<script>alert"));
  EXPECT_FALSE(contains(html, "\xFF"));
  EXPECT_TRUE(contains(html, "&lt;script&gt;alert(&#39;x&#39;)"));
}

TEST(ReportHtml, OfARunWithoutAnyStepStillSaysSo) {
  RunReport report;
  report.title = "empty";
  report.totals.final_loss = std::nan("");
  const std::string html = report_html(report);
  EXPECT_TRUE(contains(html, "No steps were recorded"));
  EXPECT_TRUE(contains(html, "nothing was sent"));
  EXPECT_FALSE(contains(html, "nan"));
}

TEST(ReportHtml, StaysSmallForALongRun) {
  RunReport report = example();
  report.history.loss.clear();
  for (int i = 1; i <= 300000; ++i) {
    report.history.loss.push_back({i, i, 2.0 + std::sin(static_cast<double>(i))});
  }
  EXPECT_LT(report_html(report).size(), 600000u);
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_LE(json["curves"]["loss"]["step"].size(), kReportPoints);
}

TEST(ReportHtml, EmbedsCurvesThatParseAsJson) {
  RunReport report = example();
  report.history.loss[10].value = std::nan("");
  const std::string html = report_html(report);
  const std::string open = "id=\"curves\">";
  const auto begin = html.find(open) + open.size();
  const Json data = parse_json(html.substr(begin, html.find("</script>", begin) - begin), "curves");
  EXPECT_EQ(data["loss"]["series"][1]["y"].size(), 400u);
  EXPECT_TRUE(data["loss"]["series"][1]["y"][10].is_null());
  EXPECT_EQ(data["loss"]["series"][2]["x"].size(), 4u);
}

TEST(ReportJson, GivesMemoryAndCommunicationPredictedAndMeasured) {
  RunReport report = example();
  report.samples[0].text = "cut inside a character \xE2\x82";
  report.totals.final_loss = std::nan("");
  const Json json = parse_json(report_json(report), "report.json");
  EXPECT_EQ(json["memory"]["activations"]["predicted_bytes"], 100 << 20);
  EXPECT_EQ(json["memory"]["activations"]["measured_peak_bytes"], 98 << 20);
  EXPECT_EQ(json["communication"]["tp"]["all_gather"]["predicted"]["calls"], 800);
  EXPECT_EQ(json["communication"]["tp"]["all_gather"]["counted"]["payload_bytes"],
            (6 << 20) + 2048);
  EXPECT_EQ(json["totals"]["tokens"], 409600);
  EXPECT_TRUE(json["totals"]["final_loss"].is_null());
  EXPECT_EQ(json["best_possible_loss"], 1.425);
  EXPECT_EQ(json["settings"]["train.steps"], "400");
  EXPECT_EQ(json["curves"]["eval_loss"]["value"][3], 1.6);
}

TEST(ReportHtml, DrawsTheLossOfEachSourceWithItsNameEscaped) {
  RunReport report = example();
  EXPECT_EQ(report_html(report).find("by source"), std::string::npos);
  report.history.eval_sources = {{"</script>", {{1, 64, 2.5}, {400, 409600, 1.75}}},
                                 {"code", {{1, 64, 2.25}, {400, 409600, 1.125}}}};
  const std::string html = report_html(report);
  EXPECT_NE(html.find("Held-out loss by source"), std::string::npos);
  EXPECT_NE(html.find("&lt;/script&gt; <b>1.750</b>"), std::string::npos);
  EXPECT_NE(html.find("code <b>1.125</b>"), std::string::npos);
  EXPECT_NE(html.find("\"name\":\"\\u003c/script>\""), std::string::npos);
  EXPECT_EQ(html.find("</script>\""), std::string::npos);
}

RunReport of_shared_attention() {
  RunReport report = example();
  report.attention = {.method = "ring", .order = "zigzag", .cp = 2};
  report.attention->layers = {{.layer = 0,
                               .exposed = {0.001, 0.003},
                               .most = 0.005,
                               .predicted = PassSeconds{0.002, 0.002}},
                              {.layer = 1, .exposed = {0.0, 0.0}, .most = 0.0}};
  report.attention->ranks = {{.rank = 0,
                              .pairs = 1200,
                              .predicted_pairs = 1300,
                              .computed = 0.006,
                              .exposed = 0.001,
                              .idle = 0.004},
                             {.rank = 1,
                              .pairs = 1500,
                              .predicted_pairs = 1300,
                              .computed = 0.009,
                              .exposed = 0.001,
                              .idle = 0.001,
                              .predicted = AttentionRankRow::Predicted{0.008, 0.0025}}};
  return report;
}

TEST(ReportJson, GivesExposedExchangeByLayerAndBalanceByRank) {
  EXPECT_TRUE(parse_json(report_json(example()), "report.json")["attention"].is_null());
  const Json json = parse_json(report_json(of_shared_attention()), "report.json")["attention"];
  EXPECT_EQ(json["cp"], 2);
  EXPECT_EQ(json["by_layer"][0]["exposed_seconds"]["backward"], 0.003);
  EXPECT_EQ(json["by_layer"][0]["most_exposed_seconds"], 0.005);
  EXPECT_EQ(json["by_layer"][0]["predicted_exposed_seconds"]["forward"], 0.002);
  EXPECT_TRUE(json["by_layer"][1]["predicted_exposed_seconds"].is_null());
  EXPECT_EQ(json["by_rank"][1]["pairs"], 1500);
  EXPECT_EQ(json["by_rank"][1]["predicted"]["computed_seconds"], 0.008);
  EXPECT_TRUE(json["by_rank"][0]["predicted"].is_null());
  // Two ranks for ten milliseconds, of which they compute six and nine.
  EXPECT_NEAR(json["idle_fraction"].get<double>(), 5.0 / 20.0, 1e-12);
  EXPECT_NEAR(json["exposed_fraction"].get<double>(), 2.0 / 20.0, 1e-12);
}

TEST(ReportJson, HasPairsAndPredictionsOfSharedAttentionThatIsNotTimed) {
  RunReport report = of_shared_attention();
  report.attention->is_timed = false;
  const Json json = parse_json(report_json(report), "report.json")["attention"];
  EXPECT_TRUE(json["idle_fraction"].is_null());
  EXPECT_TRUE(json["by_layer"][0]["exposed_seconds"].is_null());
  EXPECT_EQ(json["by_layer"][0]["predicted_exposed_seconds"]["forward"], 0.002);
  EXPECT_TRUE(json["by_rank"][1]["computed_seconds"].is_null());
  EXPECT_EQ(json["by_rank"][1]["pairs"], 1500);
  const std::string html = report_html(report);
  EXPECT_TRUE(contains(html, "1.5k pairs, 1.3k predicted"));
  EXPECT_FALSE(contains(html, "Exposed exchange"));
}

TEST(ReportHtml, ShowsExposedExchangeByLayerAndBalanceByRank) {
  const std::string html = report_html(of_shared_attention());
  for (const char* part :
       {"id=\"attention\"", "ring in zigzag order", "layer 0", "4 ms predicted", "rank 1",
        "1.5k pairs, 1.3k predicted", "10.5 ms predicted", "compute 75.0 %", "messages 10.0 %"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
}

TEST(ReportHtml, ShowsSpeedsOfRanksAtTheStepsThatWereTimed) {
  RunReport report = example();
  const auto section = [&] {
    const std::string html = report_html(report);
    const std::size_t begin = html.find("id=\"speeds\"");
    return begin == std::string::npos ? ""
                                      : html.substr(begin, html.find("</section>", begin) - begin);
  };
  report.speeds = {{.rank = 0, .blocks = 2, .seconds = 0.001, .usual = 0.002},
                   {.rank = 1, .blocks = 2, .seconds = 0.002, .usual = 0.001}};
  // One step in 25 has a line, and is timed: what lies between is no stretch of its own.
  for (std::int64_t step = 25; step <= 300; step += 25) {
    report.history.block_seconds[0].push_back({.step = step, .value = 0.001});
    report.history.block_seconds[1].push_back({.step = step, .value = 0.002});
  }
  EXPECT_TRUE(contains(section(), "rank 1 was the slowest, at 2.00"));
  EXPECT_TRUE(contains(section(), "step 25"));
  EXPECT_FALSE(contains(section(), "not timed"));
  // Of ranks that all do other work nobody is the slowest.
  for (RankSpeedRow& row : report.speeds) row.usual = 0;
  EXPECT_TRUE(contains(section(), "none is compared"));
  EXPECT_FALSE(contains(section(), "slowest"));
}

TEST(WriteReport, WritesBothFilesOrNamesTheFolderItCannotWrite) {
  const TemporaryFolder folder;
  write_report_json(folder.path() / "report.json", example());
  write_report_html(folder.path() / "report.html", example());
  EXPECT_EQ(read_json_file(folder.path() / "report.json")["title"], "weaver");
  EXPECT_EQ(read_text_file(folder.path() / "report.html"), report_html(example()));
  EXPECT_THROW(write_report_html("/dev/null/report.html", example()), Error);
}

}  // namespace
}  // namespace heddle::observe
