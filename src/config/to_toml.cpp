#include <fmt/format.h>

#include "config/explain.h"
#include "config/load.h"
#include "config/schema.h"

namespace heddle::config {
namespace {

std::string source_tables(const std::vector<DataSource>& sources) {
  std::string text;
  for (const auto& source : sources) {
    text += fmt::format("\n[[data.sources]]\npath = {}\nweight = {}\nname = {}\n",
                        toml_string(source.path.string()), source.weight, toml_string(source.name));
  }
  return text;
}

}  // namespace

std::string to_toml(const RunConfig& config, const Origins* origins) {
  std::string text;
  for (const auto& section : sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    std::string tables;
    for (const auto& key : keys()) {
      if (key.section != section.name) continue;
      const Value value = key.field.get(config);
      if (const auto* sources = std::get_if<std::vector<DataSource>>(&value)) {
        tables = source_tables(*sources);
        continue;
      }
      const auto written = to_text(key, value);
      if (written.empty()) continue;
      const auto line = fmt::format("{} = {}", key.name, written);
      text += origins == nullptr ? line + "\n"
                                 : fmt::format("{:<40} # {}\n", line, origin_of(key, *origins));
    }
    text += tables;
  }
  return text;
}

}  // namespace heddle::config
