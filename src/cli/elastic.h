#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "recover/company.h"
#include "tensor/device.h"

namespace heddle::cli {

/// How this process comes to a run that goes on when ranks are lost
/// (docs/design/050-runs-that-outlive-ranks.md).
struct ElasticOptions {
  bool joins = false;                     ///< as a newcomer, else with those that start together
  std::vector<std::string> members = {};  ///< of a newcomer: HOST:PORT; none: by the run folder
};

/// Error(usage) where ranks cannot be lost and replaced, because they are no processes joined over
/// TCP.
void require_elastic(const ElasticOptions& options);

/// Lets this process, and those that it starts, open as many files as the ranks of such a run need.
/// Error(resources) where the system allows fewer.
void allow_open_files(int ranks);

/// Runs `body` with the company of this process. Whoever is told to leave, or whom the others do
/// without, throws Ended when that was said. `is_first`: whether this process is the first of the
/// ranks now, who speaks.
void run_in_company(
    const config::RunConfig& config, const ElasticOptions& options, Device::Kind kind,
    const std::function<void(recover::Company&, Device, const bool& is_first)>& body);

}  // namespace heddle::cli
