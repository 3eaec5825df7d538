#include "base/strings.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Strings, FormatsQuantitiesForPeople) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_count(124439808), "124.4M");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_duration(3725), "1h02m");
  EXPECT_EQ(format_duration(75), "1m15s");
  EXPECT_EQ(format_thousands(1234567), "1,234,567");
  EXPECT_EQ(format_thousands(-123), "-123");
}

TEST(Strings, NearestWordFindsSlipsAndRefusesStrangers) {
  const std::vector<std::string> words = {"microbatch", "steps", "seed"};
  EXPECT_EQ(nearest_word("micro_batch", words), "microbatch");
  EXPECT_EQ(nearest_word("step", words), "steps");
  EXPECT_EQ(nearest_word("vocabulary", words), "");
}

TEST(Strings, ValidUtf8PrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(valid_utf8_prefix("abc"), 3U);
  EXPECT_EQ(valid_utf8_prefix("a\xc3\xa9"), 3U);
  EXPECT_EQ(valid_utf8_prefix("a\xc3"), 1U);              // cut short
  EXPECT_EQ(valid_utf8_prefix("\xc0\x80"), 0U);           // overlong
  EXPECT_EQ(valid_utf8_prefix("\xed\xa0\x80"), 0U);       // surrogate
  EXPECT_EQ(valid_utf8_prefix("x\xf0\x9f\xa6\x99"), 5U);  // emoji
  EXPECT_EQ(valid_utf8_prefix("\xf4\x90\x80\x80"), 0U);   // above U+10FFFF
}

TEST(Strings, LongTextsAreShownByTheirBeginning) {
  EXPECT_EQ(shortened("short"), "short");
  EXPECT_EQ(shortened(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(shortened(std::string(300, '9'), 5), "99999... (300 characters)");
  EXPECT_EQ(shortened("a\u00e4\u00e4\u00e4", 4), "a\u00e4... (7 characters)")
      << "no half characters";
  EXPECT_EQ(shortened(std::string(10, '\xff'), 4), "\xff\xff\xff\xff... (10 characters)");
}

}  // namespace
}  // namespace heddle
