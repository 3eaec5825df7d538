#include "checkpoint/inspect.h"

#include <iostream>
#include <memory>

#include "base/json_value.h"
#include "cli/progress_line.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cli/weights_verb.h"

namespace heddle::cli {
namespace {

struct InspectOptions {
  std::string path, reference;
  bool json = false;
};

template <class Report>
void print(const Report& report, bool json) {
  std::cout << (json ? to_json(report).dump() + "\n" : to_text(report)) << std::flush;
}

void run(const InspectOptions& options) {
  if (options.reference.empty()) {
    print(inspect(options.path, progress_line("reading " + options.path)), options.json);
  } else {
    print(compare(options.path, options.reference, progress_line("comparing " + options.path)),
          options.json);
  }
}

}  // namespace

void add_inspect(Verb app) {
  auto options = std::make_shared<InspectOptions>();
  Verb verb = app.add_verb("inspect", "look into weights: shapes, ranges, damage, differences");
  add_weights_and_json(verb, "PATH", &InspectOptions::path, options, run);
  verb.add_option("--compare", options->reference,
                  "the reference to compare every tensor with; the largest difference comes first");
}

}  // namespace heddle::cli
