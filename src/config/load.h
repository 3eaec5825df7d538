#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/validate.h"

namespace heddle::config {

/// Where a value came from: "run.toml:14", "--set", or, for a key that is not in the map, the
/// default. By full key name.
using Origins = std::map<std::string, std::string>;

struct LoadedRun {
  RunConfig config;
  Origins origins;
};

/// Reads a run file, applies `overrides` ("section.key=value" with a TOML value or bare text, the
/// last one wins) and checks everything. Throws one Error(usage) whose message has a line for each
/// thing that is wrong, with file:line:column. Paths are kept as given: relative ones are relative
/// to the current directory, not to the run file, so that the copy in the run folder means the
/// same. run.name, when absent, is the file's name without extension.
/// parallel.dp, when not given, follows from `ranks`, the number of ranks of the run. `of_model`
/// adds what only those know who know the model.
LoadedRun load_run_file(const std::filesystem::path& path,
                        const std::vector<std::string>& overrides = {}, int ranks = 1,
                        const MoreConflicts& of_model = {});

/// The same from text; `name` stands for the file in messages.
LoadedRun parse_run(std::string_view text, const std::string& name,
                    const std::vector<std::string>& overrides = {}, int ranks = 1);

/// The defaults with what `part`, if it is given, says (sections of a run file, as `heddle plan
/// --out` writes them) and then `overrides`, for verbs that take settings but no whole run file.
/// Each key is checked by itself.
RunConfig parse_settings(const std::vector<std::string>& overrides,
                         const std::filesystem::path& part = {});

/// A run file that loads to an equal RunConfig: every key with its value, those not given left out.
/// With origins, each line ends in a comment that says where the value came from.
std::string to_toml(const RunConfig& config, const Origins* origins = nullptr);

}  // namespace heddle::config
