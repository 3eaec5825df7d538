// Run files: any bytes give a run or an Error(usage), and a run that loads is written to a file
// that loads to the same run. A zero byte ends the file; what follows is an override.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/load.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto end = input.find('\0');
  std::vector<std::string> overrides;
  if (end != std::string_view::npos) overrides.emplace_back(input.substr(end + 1));
  heddle::config::LoadedRun run;
  try {
    run = heddle::config::parse_run(input.substr(0, end), "run.toml", overrides);
  } catch (const heddle::Error& e) {
    if (e.code() != heddle::ErrorCode::usage) std::abort();
    return 0;
  }
  const auto written = heddle::config::to_toml(run.config, &run.origins);
  if (heddle::config::parse_run(written, "again.toml").config != run.config) std::abort();
  return 0;
}
