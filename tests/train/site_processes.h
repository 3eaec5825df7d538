#pragma once

#include "cli/rank_processes.h"
#include "train/tiny_run.h"

namespace heddle {

/// A tiny run of sites, whose ranks are processes that join over TCP. Each site has a run folder of
/// its own, SITE of path(), unless it is to share the run's.
class SiteProcesses {
 public:
  using Settings = std::vector<std::string>;

  /// Fragments are sent at steps 4, 6, 8, 10, 12 and arrive a step later.
  explicit SiteProcesses(int sites, int ranks_each = 1)
      : sites_(sites),
        ranks_each_(ranks_each),
        settings_{fmt::format("parallel.sites={}", sites),
                  fmt::format("train.tokens_per_step={}", 64 * sites * ranks_each),
                  "train.microbatch=2",
                  "outer.every=4",
                  "outer.fragments=2",
                  "outer.delay=1",
                  "outer.mix=0.5",
                  "outer.codec=e3m0",
                  "checkpoint.every=2",
                  "checkpoint.keep=9",
                  "train.steps=12",
                  "run.timeout=30"} {}

  const TinyRun& run() const { return run_; }
  int ranks() const { return sites_ * ranks_each_; }
  std::filesystem::path folder(int site) const { return run_.path() / fmt::format("site{}", site); }
  std::filesystem::path checkpoint(int site, std::int64_t step) const {
    return folder(site) / "checkpoints" / checkpoint_name(step);
  }
  const Settings& settings() const { return settings_; }
  /// Behind this step the site was killed.
  void forget_after(int site, std::int64_t step) const {
    for (std::int64_t later = step + 1; later <= 12; ++later) {
      std::filesystem::remove_all(checkpoint(site, later));
    }
  }

  /// How a rank is started.
  struct Start {
    Settings settings;
    RunOptions options;
  };
  /// All ranks, with further settings of all, and what `change` makes of each.
  std::vector<Outcome> train(const Settings& more = {}, const Settings& flags = {},
                             const std::function<void(int, Start&)>& change = {}) const {
    const std::uint16_t port = free_port();
    std::vector<Start> starts;
    std::vector<Settings> commands;
    for (int rank = 0; rank < ranks(); ++rank) {
      Start start{settings_, {.environment = by_hand(rank, ranks(), port)}};
      start.settings.push_back("run.dir=" + folder(rank / ranks_each_).string());
      start.settings.insert(start.settings.end(), more.begin(), more.end());
      if (change) change(rank, start);
      commands.push_back(run_.command(start.settings, flags));
      starts.push_back(std::move(start));
    }
    return run_together(commands,
                        [&](int rank) { return starts[static_cast<std::size_t>(rank)].options; });
  }
  /// One process with all ranks, which share a folder.
  Outcome train_as_threads(const Settings& more = {}, const Settings& flags = {}) const {
    Settings settings = settings_, all = flags;
    settings.insert(settings.end(), more.begin(), more.end());
    all.insert(all.end(), {"--ranks", std::to_string(ranks())});
    return run_.train(settings, all);
  }

 private:
  const TinyRun run_;
  const int sites_, ranks_each_;
  const Settings settings_;
};

}  // namespace heddle
