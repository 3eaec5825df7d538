#include "checkpoint/inspect.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/byte_progress.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

struct Options {
  std::string path, reference;
  bool json = false;
};

template <class Report>
void print(const Report& report, bool json) {
  std::cout << (json ? to_json(report).dump() + "\n" : to_text(report)) << std::flush;
}

void run(const Options& options) {
  if (options.reference.empty()) {
    print(inspect(options.path, byte_progress("reading " + options.path)), options.json);
  } else {
    print(compare(options.path, options.reference, byte_progress("comparing " + options.path)),
          options.json);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* verb =
      app.add_subcommand("inspect", "look into weights: shapes, ranges, damage, differences");
  verb->add_option("PATH", options->path,
                   "safetensors file, model folder, checkpoint, or run folder (its newest "
                   "checkpoint)")
      ->required();
  verb->add_option(
      "--compare", options->reference,
      "the reference to compare every tensor with; the largest difference comes first");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->callback([options] { run(*options); });
}

}  // namespace heddle::cli
