#include "base/json_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json.h"

namespace heddle {
namespace {

TEST(JsonValue, IsWrittenInTheOrderItWasMade) {
  JsonValue value = {{"name", "heddle"}, {"ranks", 4}, {"ok", true}, {"none", nullptr}};
  value["list"] = std::vector<double>{1.0, 0.5};
  value["inner"]["deep"] = {{"a", 1}, {"b", JsonValue::array()}};
  value["ranks"] = 8;
  EXPECT_EQ(value.dump(), R"({"name":"heddle","ranks":8,"ok":true,"none":null,"list":[1.0,0.5],)"
                          R"("inner":{"deep":{"a":1,"b":[]}}})");
}

TEST(JsonValue, IndentsAsOthersDo) {
  const JsonValue value = {{"a", std::vector<int>{1, 2}}, {"b", JsonValue::object()}};
  EXPECT_EQ(value.dump(2), parse_json(value.dump(), "test").dump(2));
}

TEST(JsonValue, KeepsEveryBitOfANumber) {
  for (const double number : {0.1, 1.0 / 3.0, 1e300, -5e-324, 123456789.0, 1e22, 1e15}) {
    const Json read = parse_json(JsonValue(number).dump(), "test");
    EXPECT_TRUE(read.is_number_float()) << JsonValue(number).dump();
    EXPECT_EQ(read.get<double>(), number);
  }
  const auto most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(parse_json(JsonValue(most).dump(), "test").get<std::uint64_t>(), most);
  EXPECT_EQ(JsonValue(std::nan("")).dump(), "null");
  EXPECT_EQ(JsonValue(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(JsonValue(std::optional<double>()).dump(), "null");
}

TEST(JsonValue, EscapesWhatJsonReserves) {
  const std::string text = std::string("\"\\/\b\f\n\r\t\x01 ") + '\0' + "\u00e9";
  EXPECT_EQ(parse_json(JsonValue(text).dump(), "test").get<std::string>(), text);
  JsonValue value;
  value[text] = 1;
  EXPECT_TRUE(parse_json(value.dump(), "test").contains(text));
}

TEST(JsonValue, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(parse_json(JsonValue("a\xff"
                                 "b\xe2\x82")
                           .dump(),
                       "test")
                .get<std::string>(),
            "a\uFFFD"
            "b\uFFFD\uFFFD");
}

}  // namespace
}  // namespace heddle
