#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"

namespace heddle::config {

/// A run file that is right as it stands, to add mistakes to.
inline const std::string kGoodRun =
    "[model]\npreset = \"llama-15m\"\n[data]\ntrain = \"corpus.txt\"\nseq_len = 256\n"
    "[train]\nsteps = 100\n";

/// The whole message of the Error(usage) that loading gives, or "" when it gives none.
inline std::string error_text(const std::string& text,
                              const std::vector<std::string>& overrides = {}, int ranks = 1) {
  try {
    parse_run(text, "run.toml", overrides, ranks);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
}

}  // namespace heddle::config
