#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "parallel/sequence/methods/methods.h"

namespace heddle {
namespace {

/// In the order of ContextMethod, behind `automatic`.
constexpr std::array kMakeRounds = {context_methods::ring,     context_methods::gather,
                                    context_methods::ulysses,  context_methods::usp,
                                    context_methods::lightseq, context_methods::tokenring};

}  // namespace

ContextPlan make_context_plan(const ContextShape& shape) {
  if (const auto problems = problems_of(shape); !problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n")));
  }
  const ContextShape whole = resolved(shape);
  return kMakeRounds[static_cast<std::size_t>(whole.method) - 1](whole);
}

}  // namespace heddle
