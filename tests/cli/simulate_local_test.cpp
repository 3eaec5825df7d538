#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

std::vector<std::string> simulate_local(const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"simulate",     "local", "--layers",  "24",
                                    "--parameters", "1e9",   "--step-ms", "100"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SimulateLocal, PrintsCurvesAndNeededRatesOfAllMethodsAsJson) {
  const Outcome outcome = run_heddle(simulate_local({"--codec", "e3m0", "--gbit", "1", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  ASSERT_EQ(report.at("methods").size(), 3U);
  const Json &plain = report.at("methods").at(0), &streaming = report.at("methods").at(2);
  EXPECT_EQ(plain.at("method"), "data-parallel");
  EXPECT_EQ(plain.at("every"), 1);
  EXPECT_EQ(streaming.at("fragments"), 8);
  EXPECT_EQ(streaming.at("delay"), 1);
  EXPECT_NEAR(streaming.at("bits").get<double>(), 4.0625, 1e-3);  // a bf16 scale for 256 values
  EXPECT_EQ(streaming.at("curve").size(), 50U);
  const auto utilisation = [](const Json& of) {
    return of.at("at").at("utilisation").get<double>();
  };
  EXPECT_LT(utilisation(plain), 0.1);
  EXPECT_GT(utilisation(streaming), 0.75);
  EXPECT_EQ(plain.at("needed_gbit").at(4).at("utilisation"), 0.99);
}

TEST(SimulateLocal, ARateThatIsNotReachedIsNull) {
  const Outcome outcome =
      run_heddle(simulate_local({"--method", "data-parallel", "--to", "1", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_TRUE(report.at("methods").at(0).at("needed_gbit").at(0).at("gbit").is_null());
}

TEST(SimulateLocal, TellsInTextAndDraws) {
  const TestFiles files;
  const Outcome outcome = run_heddle(simulate_local({"--svg", files.at("a.svg")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"2 sites, 24 layers", "data-parallel", "diloco", "streaming"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  const std::string drawing = read_text_file(files.at("a.svg"));
  EXPECT_EQ(drawing.rfind("<svg", 0), 0U);
  for (const char* text : {"Gbit/s between sites", ">streaming<", ">100<", "</svg>"}) {
    EXPECT_NE(drawing.find(text), std::string::npos) << text;
  }
}

TEST(SimulateLocal, RefusesWhatCannotBe) {
  expect_refusal({"simulate", "local"}, 2, {"--layers"});
  expect_refusal(simulate_local({"--every", "0"}), 2, {"every = 0"});
  expect_refusal(simulate_local({"--fragments", "25"}), 2, {"fragments = 25", "at most 24"});
  expect_refusal(simulate_local({"--delay", "100"}), 2, {"delay = 100", "at most 99"});
  expect_refusal(simulate_local({"--method", "diloco", "--delay", "1"}), 2,
                 {"--delay is for --method streaming"});
  expect_refusal(simulate_local({"--codec", "e9"}), 2, {"e9"});
  expect_refusal(simulate_local({"--codec", "e3m0", "--bits", "4"}), 2, {"--codec"});
  expect_refusal(simulate_local({"--sites", "1"}), 2, {"sites = 1"});
  expect_refusal(simulate_local({"--from", "5", "--to", "2"}), 2, {"--from 5", "--to 2"});
}

}  // namespace
}  // namespace heddle
