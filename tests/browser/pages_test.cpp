#include <gtest/gtest.h>

#include <cmath>

#include "browser/chromium.h"
#include "observe/page.h"
#include "observe/report.h"
#include "planner/measured_rows.h"
#include "planner/plan_page.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

/// What every page must be, in the browser's own words.
constexpr const char* kState = R"js(
  const html = document.documentElement;
  const page = { ready: html.dataset.ready, error: html.dataset.error || "",
                 requests: performance.getEntriesByType("resource").length,
                 overflow: html.scrollWidth - html.clientWidth };
)js";

void expect_sound(const Json& page) {
  EXPECT_EQ(page.value("ready", ""), "yes");
  EXPECT_EQ(page.value("error", "none"), "");
  EXPECT_EQ(page.value("requests", -1), 0);
  EXPECT_LE(page.value("overflow", 99), 0) << "wider than the window";
}

observe::Timeline two_ranks(int microbatches) {
  observe::Timeline timeline{.description = "two ranks", .unit = "ms"};
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < microbatches; ++i) {
      timeline.bars.push_back({.rank = rank,
                               .label = "F" + std::to_string(i),
                               .begin = 3.0 * i + rank,
                               .end = 3.0 * i + rank + 2.0});
    }
    timeline.bars.push_back({.rank = rank,
                             .label = "sa0</script>",
                             .kind = observe::TimelineKind::communication,
                             .begin = 1.0,
                             .end = 2.5,
                             .line = 1,
                             .bytes = 3 << 20});
  }
  return timeline;
}

std::string page_of(const observe::Timeline& timeline) {
  return observe::page_html({.kind = "test",
                             .title = "timeline",
                             .summary = "",
                             .body = observe::timeline_figure(timeline),
                             .footer = ""});
}

/// Functions to look at a timeline and to do what a hand does.
constexpr const char* kHand = R"js(
  const figure = document.querySelector(".timeline-figure"), view = figure.querySelector(".view");
  const svg = view.querySelector("svg"), tip = view.querySelector(".tip");
  const state = () => ({ from: +figure.dataset.from, to: +figure.dataset.to,
                         drawn: +figure.dataset.drawn, bars: svg.querySelectorAll(".bar").length });
  const at = (x, y) => {
    const box = svg.getBoundingClientRect();
    return { clientX: box.left + x * box.width, clientY: box.top + y, bubbles: true, cancelable: true };
  };
  const send = (Kind, name, x, y, more) => view.dispatchEvent(new Kind(name, { ...at(x, y), ...more }));
  const press = (what) => figure.querySelector(`[data-do=${what}]`).click();
)js";

TEST(TimelineInABrowser, DrawsEveryBarThatIsWideEnough) {
  const int microbatches = 40;
  const Json said =
      run_in_browser(page_of(two_ranks(microbatches)),
                     std::string(kState) + kHand + "return { page, whole: state() };");
  expect_sound(said.at("page"));
  EXPECT_EQ(said.at("whole").at("bars"), 2 * microbatches + 2);
  EXPECT_EQ(said.at("whole").at("drawn"), 2 * microbatches + 2);
}

TEST(TimelineInABrowser, ZoomsMovesAndTellsWhatIsUnderThePointer) {
  const Json said = run_in_browser(page_of(two_ranks(4000)), std::string(kState) + kHand + R"js(
    const whole = state();
    send(WheelEvent, "wheel", .5, 40, { deltaY: -200 });
    const unfocused = state();
    send(WheelEvent, "wheel", .5, 40, { deltaY: -200, ctrlKey: true });
    const wheeled = state();
    press("in");
    const pressed = state();
    send(PointerEvent, "pointerdown", .5, 40, { button: 0 });
    send(PointerEvent, "pointermove", .6, 40);
    send(PointerEvent, "pointerup", .6, 40);
    const dragged = state();
    view.focus();
    view.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
    const again = state();
    for (let i = 0; i < 8; ++i) {
      view.dispatchEvent(new WheelEvent("wheel", { ...at(0, 40), clientX: svg.getBoundingClientRect().left + 58,
                                                   deltaY: -250, ctrlKey: true }));
    }
    const close = state();
    const point = (what) => {
      const box = svg.querySelector(what).getBoundingClientRect();
      view.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));
      return tip.innerText;
    };
    const action = point(".bar.f"), message = point(".bar.c");
    return { page, whole, unfocused, wheeled, pressed, dragged, again, close, action, message };
  )js");
  expect_sound(said.at("page"));
  const auto width = [&](const char* when) {
    return said.at(when).at("to").get<double>() - said.at(when).at("from").get<double>();
  };
  // One bar stands for several where they are narrower than two pixels.
  EXPECT_LT(said.at("whole").at("bars"), 2000);
  EXPECT_GT(said.at("whole").at("bars"), 200);
  EXPECT_EQ(said.at("unfocused"), said.at("whole")) << "the page must scroll";
  EXPECT_LT(width("wheeled"), 0.6 * width("whole"));
  EXPECT_NEAR(width("pressed"), 0.5 * width("wheeled"), 0.02 * width("wheeled"));
  EXPECT_NEAR(width("dragged"), width("pressed"), 0.01 * width("pressed"));
  EXPECT_LT(said.at("dragged").at("from"), said.at("pressed").at("from"));
  EXPECT_EQ(said.at("again"), said.at("whole"));
  EXPECT_LT(width("close"), 0.002 * width("whole"));
  EXPECT_LT(said.at("close").at("bars"), 30);
  const std::string action = said.at("action"), message = said.at("message");
  EXPECT_NE(action.find("F0"), std::string::npos) << action;
  EXPECT_NE(action.find("2 ms"), std::string::npos) << action;
  EXPECT_NE(message.find("sa0</script>"), std::string::npos) << message;
  EXPECT_NE(message.find("3.0 MiB"), std::string::npos) << message;
}

TEST(PlanPageInABrowser, IsWholeOnAScreenAndOnAPhone) {
  const auto machine = planner::read_machine(source_dir() + "/configs/systems/a100-dgx-hdr.toml");
  const planner::Job job{.spec = planner::gpt_spec(12288, 96, 24, 2048),
                         .seq_len = 2048,
                         .batch = 128,
                         .stack = planner::Stack::heddle(DType::bf16)};
  const auto report =
      planner::make_report("a part of <175B>", machine, job, {.gpus = 64, .threads = 2});
  const std::string page = plan_page(report);
  for (const int width : {1200, 500}) {
    const Json said = run_in_browser(page, std::string(kState) + R"js(
      const count = (what) => document.querySelectorAll(what).length;
      return { page, width: innerWidth, plans: count("#plans table tr"), memory: count("#memory .row"),
               front: count("#layouts .point"), axes: count("#communication .row"),
               title: document.querySelector("h1").innerText };
    )js",
                                     width);
    expect_sound(said.at("page"));
    EXPECT_EQ(said.at("width"), width);
    EXPECT_EQ(said.at("plans"), 9);
    EXPECT_EQ(said.at("memory"), report.plans.front().found.candidate.pp);
    EXPECT_GT(said.at("front"), 3);
    EXPECT_GT(said.at("axes"), 0);
    EXPECT_EQ(said.at("title").get<std::string>(),
              "a part of <175B> on 64 \xC3\x97 A100-SXM4-80GB");
  }
}

TEST(RunReportInABrowser, ReadsItsCurvesUnderThePointer) {
  observe::RunReport report;
  report.title = "weaver";
  for (int i = 1; i <= 200; ++i) report.history.loss.push_back({i, i * 64, 4.0 / i});
  report.timelines = {{"Measured", two_ranks(8)}};
  const Json said = run_in_browser(report_html(report), std::string(kState) + kHand + R"js(
    const plot = document.querySelector("#loss .plot"), box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 9 }));
    return { page, tip: plot.querySelector(".tip").innerText, timeline: state() };
  )js");
  expect_sound(said.at("page"));
  EXPECT_NE(said.at("tip").get<std::string>().find("100"), std::string::npos) << said.at("tip");
  EXPECT_EQ(said.at("timeline").at("bars"), 18);
}

TEST(RunReportInABrowser, ShowsSharedAttentionAtAnyWidth) {
  observe::RunReport report;
  report.title = "weaver";
  report.attention = {.method = "ring", .order = "zigzag", .cp = 32};
  for (int i = 0; i < 32; ++i) {
    report.attention->layers.push_back({.layer = i,
                                        .exposed = {1e-3 * i, 2e-3 * i},
                                        .most = 4e-3 * i,
                                        .predicted = observe::PassSeconds{1e-3 * i, 1e-3 * i}});
    report.attention->ranks.push_back({.rank = i,
                                       .pairs = 123456789012,
                                       .predicted_pairs = 123456789012,
                                       .computed = 0.01 * i,
                                       .exposed = 0.05,
                                       .idle = 0.4 - 0.01 * i});
  }
  for (const int width : {1200, 500}) {
    const Json said = run_in_browser(report_html(report), std::string(kState) + R"js(
      const parts = [...document.querySelectorAll("#attention .stack i")].map((one) => one.getBoundingClientRect());
      return { page, parts: parts.length, seen: parts.filter((box) => box.width > 1 && box.height > 1).length };
    )js",
                                     width);
    expect_sound(said.at("page"));
    EXPECT_EQ(said.at("parts"), 2 * 31 + 31 + 32 + 32);  // no part where there is no time
    EXPECT_GT(said.at("seen"), 100) << width;
  }
}

TEST(RunReportInABrowser, SwitchesItsLossAxisByClickAndKeepsLabelsApart) {
  observe::RunReport report;
  report.title = "weaver";
  for (int i = 1; i <= 120000; i += 100)
    report.history.loss.push_back({i, i * 64, 1 + 400 * std::exp(-i / 15000.0)});
  report.history.lr = report.history.loss;
  for (auto& point : report.history.lr) point.value = 1.5e-8 * static_cast<double>(point.step);
  report.best_possible_loss = 1.0;
  for (const int step : {0, 30000, 31000, 60000}) {
    report.starts.push_back({.step = step, .time = "2026-11-15T09:30:00Z", .command = "heddle"});
  }
  for (const int width : {1200, 500}) {
    const Json said = run_in_browser(report_html(report), std::string(kState) + R"js(
      const seen = (what) => [...document.querySelectorAll("#loss " + what)]
          .filter((one) => one.getClientRects().length).map((one) => one.innerText);
      const touching = () => {
        const boxes = [...document.querySelectorAll(".plot span")].map((one) => [one, one.getBoundingClientRect()])
            .filter(([, box]) => box.width), pairs = [];
        for (const [a, p] of boxes) for (const [b, q] of boxes) {
          if (a !== b && p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom) pairs.push(a.innerText + "/" + b.innerText);
        }
        return pairs;
      };
      const choose = (what) => document.querySelector(`label[for=axis-${what}]`).click();
      choose("linear");
      const linear = seen(".ty"), apart = touching();
      choose("log");
      const log = seen(".ty"), focusable = document.getElementById("axis-log").tabIndex >= 0;
      const plot = document.querySelector("#loss .plot"), box = plot.getBoundingClientRect();
      plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 9 }));
      return { page, linear, log, focusable, touching: [...apart, ...touching()],
               tip: plot.querySelector(".tip").innerText, lr: document.querySelector("#lr").innerText };
    )js",
                                     width);
    expect_sound(said.at("page"));
    EXPECT_EQ(said.at("linear"), Json({"0", "100", "200", "300", "400"}));
    EXPECT_EQ(said.at("log"), Json({"1", "3", "10", "30", "100", "300"}));
    EXPECT_TRUE(said.at("focusable").get<bool>());
    EXPECT_EQ(said.at("touching"), Json::array()) << width;
    EXPECT_NE(said.at("tip").get<std::string>().find("resumed at step 60,000, 2026-11-15"),
              std::string::npos)
        << said.at("tip");
    EXPECT_NE(said.at("lr").get<std::string>().find("0.5e-3"), std::string::npos) << said.at("lr");
  }
}

}  // namespace
}  // namespace heddle
