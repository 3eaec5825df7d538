#include "nn/experts/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace heddle {

std::int64_t Capacity::rows(std::int64_t tokens, std::int64_t experts,
                            std::int64_t per_token) const {
  const auto round = [](double value) { return static_cast<std::int64_t>(value); };
  std::int64_t room = 0;
  if (formula == Formula::tutel) {
    const std::int64_t fair = (tokens + experts - 1) / experts;
    room = per_token * round(std::abs(factor) * static_cast<double>(fair));
    if (factor > 0.0) room = (room + multiple - 1) / multiple * multiple;
  } else {
    room = round(
        std::ceil(factor * static_cast<double>(per_token * tokens) / static_cast<double>(experts)));
    if (formula == Formula::deepspeed) room = std::max(room, least);
  }
  if (room > 0) return room;
  throw Error(ErrorCode::usage,
              fmt::format("model.capacity_factor = {} leaves experts no room for any of {} tokens "
                          "that choose {} of {} experts",
                          factor, tokens, per_token, experts),
              "raise it, or leave it out: then nothing is dropped");
}

}  // namespace heddle
