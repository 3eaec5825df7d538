#pragma once

#include <memory>
#include <string>

#include "cli/verb.h"

namespace heddle::cli {

/// What the verbs on stored weights have in common: where the weights are, --json, and the call of
/// `run` when the verb was chosen.
template <class Options>
void add_weights_and_json(Verb verb, const char* name, std::string Options::*path,
                          const std::shared_ptr<Options>& options, void (*run)(const Options&)) {
  verb.add_option(name, (*options).*path,
                  "safetensors file, model folder, checkpoint, or run folder (its newest "
                  "checkpoint)")
      .required();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options, run] { run(*options); });
}

}  // namespace heddle::cli
