#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {

void add_verify(Verb app) {
  Verb verify = app.add_verb("verify", "compare Heddle with references");
  verify.require_verb();
  add_verify_mesh(verify);
  add_verify_reference(verify);
  add_verify_tokenizer(verify);
}

}  // namespace heddle::cli
