#include "parallel/schedule/make_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "parallel/schedule/generators/generators.h"

namespace heddle {
namespace {

enum class Chunks { one, two, any };

struct Entry {
  std::string_view name;
  Schedule (*generate)(const PipeShape&);
  Chunks chunks;
  Schedule (*with_vocabulary)(const PipeShape&) = nullptr;
};

/// In the order of Pipeline.
constexpr std::array<Entry, 9> kSchedules = {{
    {"gpipe", generators::gpipe, Chunks::one},
    {"1f1b", generators::one_f_one_b, Chunks::one, generators::vocabulary_one_f_one_b},
    {"interleaved", generators::interleaved, Chunks::any},
    {"zb-h1", generators::zb_h1, Chunks::one},
    {"zb-h2", generators::zb_h2, Chunks::one},
    {"zb-v", generators::zb_v, Chunks::two},
    {"v-min", generators::v_min, Chunks::two},
    {"v-half", generators::v_half, Chunks::two, generators::vocabulary_v_half},
    {"routes", generators::routed, Chunks::one},
}};

constexpr auto kNames = [] {
  std::array<std::string_view, kSchedules.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kSchedules[i].name;
  return names;
}();

void require_positive(int value, std::string_view what) {
  if (value >= 1) return;
  throw Error(ErrorCode::usage, fmt::format("a pipeline of {} {} is not possible", value, what),
              fmt::format("give 1 or more {}", what));
}

void check_chunks(const Entry& entry, int chunks) {
  const int most = entry.chunks == Chunks::one ? 1 : 2;
  if (entry.chunks == Chunks::any || chunks <= most) return;
  throw Error(ErrorCode::usage,
              fmt::format("schedule {} has {} per rank, not {}", entry.name,
                          most == 1 ? "one chunk" : "two chunks", chunks),
              fmt::format("leave chunks = {}, or use the interleaved schedule", most));
}

void check_vocabulary(const Entry& entry, int algorithm) {
  if (algorithm < 0 || algorithm > 2) {
    throw Error(ErrorCode::usage, fmt::format("there is no vocabulary algorithm {}", algorithm),
                "use 1 or 2, or 0 for a vocabulary that is not split over the pipeline");
  }
  if (algorithm == 0 || entry.with_vocabulary != nullptr) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("schedule {} does not split the vocabulary over the pipeline", entry.name),
      "use 1f1b or v-half, or leave the vocabulary whole or split over tp");
}

void check_routes_of(const Entry& entry, const PipeShape& shape) {
  if (shape.routes.empty()) return;
  if (entry.generate != generators::routed) {
    throw Error(
        ErrorCode::usage,
        fmt::format("schedule {} lets every micro-batch visit all stages in order", entry.name),
        "use the schedule routes");
  }
  require_routes(shape.routes, shape.ranks);
}

}  // namespace

std::span<const std::string_view> schedule_names() { return kNames; }

std::string_view name_of(Pipeline schedule) { return kNames[static_cast<std::size_t>(schedule)]; }

Pipeline pipeline_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) {
    throw Error(ErrorCode::usage, fmt::format("there is no schedule \"{}\"", name),
                fmt::format("use one of {}", fmt::join(kNames, ", ")));
  }
  return static_cast<Pipeline>(found - kNames.begin());
}

Schedule make_schedule(Pipeline schedule, const PipeShape& shape) {
  const Entry& entry = kSchedules[static_cast<std::size_t>(schedule)];
  require_positive(shape.ranks, "stages");
  require_positive(shape.microbatches, "micro-batches");
  require_positive(shape.chunks, "chunks");
  check_chunks(entry, shape.chunks);
  check_vocabulary(entry, shape.vocabulary);
  check_routes_of(entry, shape);
  return (shape.vocabulary == 0 ? entry.generate : entry.with_vocabulary)(shape);
}

}  // namespace heddle
