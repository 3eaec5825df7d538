#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/error.h"
#include "comm/tcp_processes.h"

namespace heddle::testing {

/// The rank ended by the signal; one other, the first that is left, told why, as the pattern says,
/// and all others ended because of it.
inline void expect_lost(const Ends& ends, int lost, int signal, const std::string& pattern) {
  ASSERT_EQ(ends.told.size(), 1U);
  const auto& [teller, text] = *ends.told.begin();
  EXPECT_EQ(teller, lost == 0 ? 1 : 0);
  EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << text;
  for (std::size_t rank = 0; rank < ends.statuses.size(); ++rank) {
    EXPECT_EQ(ends.statuses[rank],
              static_cast<int>(rank) == lost ? 128 + signal : static_cast<int>(ErrorCode::peer))
        << rank;
  }
}

}  // namespace heddle::testing
