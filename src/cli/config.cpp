#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace heddle::cli {

void add_config(CLI::App& app) { app.add_subcommand("config", "what a key of the run file means"); }

}  // namespace heddle::cli
