#pragma once

#include <optional>

#include "data/tokenize.h"
#include "observe/progress.h"

namespace heddle {

/// Shows what tokenize() reports as a progress line.
class TokenizeLine {
 public:
  explicit TokenizeLine(const observe::Terminal& terminal) : terminal_(terminal) {}

  void show(const TokenizeProgress& now);
  void finish();

 private:
  observe::Terminal terminal_;
  std::optional<observe::Progress> line_;
  std::size_t reused_ = 0, fresh_ = 0;
};

}  // namespace heddle
