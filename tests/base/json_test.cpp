#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace heddle {
namespace {

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"z":1,"a":2})", "x.json").dump(), R"({"z":1,"a":2})");
}

TEST(Json, SaysWhereTheTextIsMalformed) {
  try {
    parse_json("{\n  \"a\": 1,\n  oops\n}", "model/config.json");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_EQ(e.message().rfind("model/config.json:3:", 0), 0U) << e.message();
  }
}

TEST(Json, RefusesNumbersBeyondADouble) {
  try {
    parse_json(R"({"layer_norm_epsilon": 1e555})", "config.json");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_EQ(e.message(), "config.json: not valid JSON: number overflow parsing '1e555'");
  }
}

TEST(Json, RefusesNestingThatCouldExhaustTheStack) {
  EXPECT_THROW(parse_json(std::string(100000, '['), "deep.json"), Error);
}

}  // namespace
}  // namespace heddle
