#include "parallel/schedule/checks.h"

namespace heddle {

std::vector<Diagnostic> validate(const Schedule& lowered) {
  std::vector<Diagnostic> found;
  check_routes(lowered, found);
  if (!found.empty()) return found;
  for (int rank = 0; rank < lowered.ranks(); ++rank) check_order(lowered, rank, found);
  check_communication(lowered, found);
  return found;
}

}  // namespace heddle
