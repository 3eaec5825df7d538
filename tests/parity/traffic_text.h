#pragma once

#include <fmt/format.h>

#include <string>

#include "mesh/mesh.h"

namespace heddle {

/// One line per group and operation, so that a difference reads well.
inline std::string text(MeshTraffic traffic) {
  std::string lines;
  traffic.with(traffic, [&](const char* group, const CommCounts& counts, const CommCounts&) {
    for (int op = 0; op < kCommOps; ++op) {
      const auto& [calls, bytes, wire] = counts.by_op[static_cast<std::size_t>(op)];
      if (calls == 0) continue;
      lines += fmt::format("{} {}: {} calls {} bytes", group, name_of(static_cast<CommOp>(op)),
                           calls, wire);
      lines += wire == bytes ? "\n" : fmt::format(" for {}\n", bytes);
    }
  });
  return lines;
}

}  // namespace heddle
