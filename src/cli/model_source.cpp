#include "cli/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "config/presets.h"
#include "model/registry.h"
#include "observe/machine.h"

namespace heddle::cli {

ModelSpec model_spec_of(const std::string& source) {
  const auto presets = config::preset_names();
  if (std::ranges::find(presets, source) != presets.end()) {
    return model_spec(parse_json(config::preset_config(source), "preset " + source), "preset " + source);
  }
  const std::filesystem::path path(source);
  if (std::filesystem::is_directory(path)) return read_model_spec(path / "config.json");
  if (std::filesystem::exists(path)) return read_model_spec(path);
  throw Error(ErrorCode::usage,
              fmt::format("model \"{}\" is neither a preset nor a file or folder", source),
              fmt::format("presets: {}", fmt::join(presets, ", ")));
}

int thread_count(int wanted) {
  if (wanted > 0) return wanted;
  if (const char* limit = std::getenv("OMP_NUM_THREADS")) {
    if (const int threads = std::atoi(limit); threads > 0) return threads;
  }
  return observe::inspect_machine().cores_usable;
}

}  // namespace heddle::cli
