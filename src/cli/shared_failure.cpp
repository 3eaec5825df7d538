#include "cli/shared_failure.h"

#include <algorithm>

#include "base/log.h"
#include "comm/agree.h"
#include "comm/failure_text.h"

namespace heddle::cli {

int tell_shared_failure(World& world, const std::exception_ptr& failure) {
  const std::string text = failure ? failure_text_with_hint(failure) : "";
  // What ranks compare: the status and the text, or nothing.
  const std::string own =
      failure ? fmt::format("{} {}", static_cast<int>(failure_code(failure)), text) : "";
  const std::vector<std::string> all = texts_of_all(world, own);
  const auto first = std::ranges::find_if(all, [](const auto& one) { return !one.empty(); });
  if (first == all.end()) return 0;
  if (failure && std::ranges::find(all, own) == all.begin() + world.rank()) {
    const bool is_everywhere =
        std::ranges::all_of(all, [&](const auto& one) { return one == own; });
    log_line(LogLevel::error,
             is_everywhere ? text : fmt::format("rank {}: {}", world.rank(), text));
  }
  world.all().barrier();  // a rank that ends may take the others along before they have spoken
  return std::stoi(*first);
}

}  // namespace heddle::cli
