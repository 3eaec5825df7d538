#pragma once

#include <string>
#include <vector>

#include "train/data_setup.h"

namespace heddle {

/// What a run will take from its data, for the table at its start.
struct DataUse {
  std::vector<std::string> lines;     ///< the whole, then each source of a mixture
  std::vector<std::string> warnings;  ///< about sources that are read too often
};
DataUse describe_use(const RunData& data, const config::RunConfig& config);

}  // namespace heddle
