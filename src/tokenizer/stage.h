#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/section.h"

namespace heddle {

/// Goes through a stage of tokenizer.json: a step, or a Sequence that has its steps under `key`.
/// Calls `add(kind, step)` for each step with the one of `kinds` whose `type` it has; `what` names
/// the stage where there is none.
template <class Kinds, class Add>
void for_steps(const Section& step, std::string_view key, std::string_view what, const Kinds& kinds,
               const Add& add) {
  const std::string& type = step.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < step.array(key).size(); ++i) {
      for_steps(step.element(key, i), key, what, kinds, add);
    }
    return;
  }
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) { return one.type == type; });
  if (kind == kinds.end()) step.refuse(fmt::format("{} {}", what, type));
  add(*kind, step);
}

}  // namespace heddle
