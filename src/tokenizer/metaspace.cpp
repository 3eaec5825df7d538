#include "tokenizer/metaspace.h"

#include "base/error.h"
#include "tokenizer/section.h"

namespace heddle {
namespace {

Metaspace::Prepend read_prepend(const Section& step) {
  const std::string scheme = step.string("prepend_scheme", "always");
  if (scheme == "first") return Metaspace::Prepend::first;
  if (scheme == "never") return Metaspace::Prepend::never;
  if (scheme != "always") step.refuse(fmt::format("prepend_scheme {}", scheme));
  return Metaspace::Prepend::always;
}

}  // namespace

Metaspace read_metaspace(const Section& step) {
  Metaspace metaspace{step.character("replacement"), read_prepend(step), step.flag("split", true)};
  if (!step.flag("add_prefix_space", true) && metaspace.prepend != Metaspace::Prepend::never) {
    if (step.find("prepend_scheme") != nullptr) {
      fail(ErrorCode::data, "{}: add_prefix_space and prepend_scheme contradict each other",
           step.path());
    }
    metaspace.prepend = Metaspace::Prepend::never;
  }
  return metaspace;
}

}  // namespace heddle
