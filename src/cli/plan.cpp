#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {

void add_plan(Verb app) {
  Verb verb = app.add_verb("plan", "choose a parallel layout for a model on a machine");
  add_plan_evaluate(verb);
  verb.require_verb();
}

}  // namespace heddle::cli
