#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace heddle {
namespace {

TEST(Crc32c, MatchesThePublishedCheckValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("6789", crc32c("12345")), crc32c("123456789"));
}

TEST(Crc32c, IsTheSameInPiecesOfAnyLengthAndWithoutTheInstruction) {
  std::string text;
  std::uint32_t word = 1;
  for (int i = 0; i < 20'000; ++i)
    text += static_cast<char>((word = word * 1664525U + 1013904223U) >> 24);
  std::uint32_t one_by_one = 0;
  for (const char c : text) one_by_one = crc32c({&c, 1}, one_by_one);
  EXPECT_EQ(crc32c(text), one_by_one);
  EXPECT_EQ(crc32c_by_tables(text), one_by_one);
  const std::string_view all = text;
  for (const std::size_t at : {1U, 7U, 8U, 3071U, 3072U, 3073U, 9216U, 19'999U}) {
    EXPECT_EQ(crc32c(all.substr(at), crc32c(all.substr(0, at))), one_by_one) << at;
    EXPECT_EQ(crc32c_by_tables(all.substr(at), crc32c(all.substr(0, at))), one_by_one) << at;
  }
}

}  // namespace
}  // namespace heddle
