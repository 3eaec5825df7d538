#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace heddle::cli {

void add_bench(CLI::App& app) {
  auto* const bench = app.add_subcommand("bench", "how fast this machine does what training needs");
  bench->require_subcommand(1);
  add_bench_ops(*bench);
}

}  // namespace heddle::cli
