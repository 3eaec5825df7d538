#include "train/common_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/agree.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// What the first keeper of a folder says that it has.
struct Newest {
  int site = 0;
  std::int64_t step = -1;  // -1: none
};

/// Of all folders; `own` counts on first keepers.
std::vector<Newest> newest_of_all(const Keepers& keepers, const Newest& own) {
  std::vector<Newest> all;
  const std::string text = keepers.is_first() ? Json::array({own.site, own.step}).dump() : "";
  for (const std::string& one : texts_of_all(keepers.all(), text)) {
    if (one.empty()) continue;
    const Json json = parse_json(one, "a site's newest checkpoint");
    all.push_back({json.at(0), json.at(1)});
  }
  return all;
}

[[noreturn]] void refuse(const Keepers& keepers, const std::vector<Newest>& at_first,
                         const Newest& without) {
  std::string newest;
  for (const Newest& one : at_first) {
    newest += fmt::format("{}site {} has {}", newest.empty() ? "" : ", ", one.site,
                          one.step < 0 ? std::string("none") : fmt::format("step {}", one.step));
  }
  const bool has_any = std::ranges::none_of(
      at_first, [&](const Newest& one) { return one.site == without.site && one.step < 0; });
  throw_on_all(
      keepers.all(),
      Error(ErrorCode::usage,
            fmt::format("{} (the newest: {})",
                        has_any ? "there is no step of which all sites have a whole checkpoint"
                                : fmt::format("site {} has no checkpoint in its run folder, others "
                                              "have",
                                              without.site),
                        newest),
            fmt::format("copy the run folder of another site, at least its newest checkpoint, to "
                        "site {}: it then goes on from the same outer weights with the states of "
                        "that site; or start all sites with --fresh",
                        without.site)));
}

}  // namespace

std::optional<CheckpointReader> open_common(const Keepers& keepers, const fs::path& root, int site,
                                            bool may_start_over) {
  std::optional<CheckpointReader> found;
  keepers.decide([&] { found = open_latest(root); });
  const auto newest_here = [&] {
    return Newest{site, found ? found->manifest().step : std::int64_t{-1}};
  };
  const std::int64_t at_first_here = newest_here().step;
  const auto at_first = newest_of_all(keepers, newest_here());
  for (auto all = at_first;; all = newest_of_all(keepers, newest_here())) {
    const auto [least, most] = std::ranges::minmax(all, {}, &Newest::step);
    if (least.step == most.step) break;
    if (least.step < 0 && may_start_over) {
      if (keepers.is_first()) log_info("no checkpoint is there on all sites: they begin anew");
      return std::nullopt;
    }
    if (least.step < 0) refuse(keepers, at_first, least);
    keepers.decide([&, last = least.step] {
      if (newest_here().step > last) found = open_latest(root, last);
    });
  }
  if (newest_here().step < at_first_here) {
    log_info("site {} goes back from step {} to {}, the newest that all sites have", site,
             at_first_here, found->manifest().step);
  }
  return found;
}

}  // namespace heddle
