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

}  // namespace
}  // namespace heddle
