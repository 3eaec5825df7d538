#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "observe/progress.h"
#include "observe/terminal.h"

namespace heddle::cli {

/// A progress line for a library function that reports (bytes done, bytes in all), or so many of
/// another unit; the line ends when all is done.
inline std::function<void(std::uint64_t, std::uint64_t)> progress_line(std::string label,
                                                                       std::string unit = "B") {
  struct State {
    std::unique_ptr<observe::Progress> line;
    std::uint64_t done = 0;
  };
  auto state = std::make_shared<State>();
  return [state, label = std::move(label), unit = std::move(unit)](std::uint64_t done,
                                                                   std::uint64_t total) {
    if (!state->line) {
      state->line = std::make_unique<observe::Progress>(observe::ProgressOptions{
          .label = label,
          .total = total,
          .unit = unit,
          .terminal = observe::stderr_terminal(std::getenv("NO_COLOR") != nullptr)});
    }
    state->line->add(done - state->done);
    state->done = done;
    if (done == total) state->line->finish();
  };
}

}  // namespace heddle::cli
