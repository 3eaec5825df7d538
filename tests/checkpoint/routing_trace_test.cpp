#include "checkpoint/routing_trace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

class RoutingTraceFile : public testing::Test {
 protected:
  std::filesystem::path at(const char* name) const { return folder_.path() / name; }
  template <class Read>
  std::string refusal(const Read& read) const {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      return error.what();
    }
    return "no refusal";
  }
  std::string refused_trace(const RoutingTrace& trace) const {
    write_routing_trace(real_file_system(), at("bad"), trace);
    return refusal([&] { read_routing_trace(at("bad")); });
  }
  std::string refused_placement(const std::string& text) const {
    write_file_atomically(real_file_system(), at("bad.json"), text);
    return refusal([&] { read_expert_placement(at("bad.json")); });
  }
  static void expect_says(const std::string& message, const std::string& words) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }

  TemporaryFolder folder_;
};

TEST_F(RoutingTraceFile, IsReadAsItWasWritten) {
  const RoutingTrace trace{
      .experts = 4, .layers = 3, .choices = 2, .taken = {0, 1, 2, 3, 1, -1, 3, 2, 1, 0, 0, 1}};
  write_routing_trace(real_file_system(), at("trace"), trace);
  const RoutingTrace read = read_routing_trace(at("trace"));
  EXPECT_EQ(read.experts, 4);
  EXPECT_EQ(read.layers, 3);
  EXPECT_EQ(read.choices, 2);
  EXPECT_EQ(read.tokens(), 2);
  EXPECT_EQ(read.taken, trace.taken);
}

TEST_F(RoutingTraceFile, RefusesWhatIsWrong) {
  expect_says(refused_trace({.experts = 2, .layers = 2, .choices = 1, .taken = {0, 2}}),
              "element 1 is expert 2 of 2");
  expect_says(refused_trace({.experts = 2, .layers = 2, .choices = 1, .taken = {-2, 1}}),
              "expert -2");
  expect_says(refused_trace({.experts = 2, .layers = 1, .choices = 1, .taken = {0}}), "1 layers");
  expect_says(refused_trace({.experts = 2, .layers = 2, .choices = 3, .taken = {0, 1, 0, 1, 0, 1}}),
              "3 choices");
  expect_says(refused_trace({.experts = 1 << 20, .layers = 2, .choices = 1, .taken = {0, 1}}),
              "2 layers of 1048576 experts");
  write_file_atomically(real_file_system(), at("text"), "hello");
  expect_says(refusal([&] { read_routing_trace(at("text")); }), "text");
}

TEST_F(RoutingTraceFile, PlacementsAreReadAsTheyWereWritten) {
  const ExpertPlacement placement{.ranks = 2, .rank_of = {{1, 0, 1, 0}, {0, 0, 1, 1}}};
  write_expert_placement(real_file_system(), at("placement.json"), placement);
  const ExpertPlacement read = read_expert_placement(at("placement.json"));
  EXPECT_EQ(read.ranks, 2);
  EXPECT_EQ(read.rank_of, placement.rank_of);
}

TEST_F(RoutingTraceFile, PlacementsThatCannotBeAreRefused) {
  const auto with = [](const std::string& rest) {
    return R"({"format": "heddle-expert-placement", "version": 1, )" + rest + "}";
  };
  expect_says(refused_placement(with(R"("ranks": 2, "rank_of": [[0, 0, 0, 1]])")),
              "rank 0 has 3 of 4 experts");
  expect_says(refused_placement(with(R"("ranks": 2, "rank_of": [[0, 1], [0, 1, 0, 1]])")),
              "layer 1 has 4 experts");
  expect_says(refused_placement(with(R"("ranks": 2, "rank_of": [])")), "places nothing");
  expect_says(refused_placement(with(R"("ranks": 2)")), "rank_of");
  expect_says(refused_placement(R"({"format": "other", "version": 1})"), "not an expert placement");
  expect_says(refused_placement("[]"), "not an expert placement");
}

}  // namespace
}  // namespace heddle
