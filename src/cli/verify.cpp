#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace heddle::cli {

void add_verify(CLI::App& app) {
  auto* verify = app.add_subcommand("verify", "compare Heddle with references");
  verify->require_subcommand(1);
  add_verify_mesh(*verify);
  add_verify_reference(*verify);
  add_verify_tokenizer(*verify);
}

}  // namespace heddle::cli
