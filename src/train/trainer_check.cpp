#include "train/trainer_check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace heddle {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

bool is_whole(const Json& value, std::int64_t most = kMost) {
  if (value.is_number_unsigned()) {
    return value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
  }
  return value.is_number_integer() && value >= 0 && value <= most;
}

class TrainerCheck {
 public:
  TrainerCheck(const Json& trainer, const ModelSpec& spec, std::string file)
      : trainer_(trainer), spec_(spec), file_(std::move(file)) {}

  void run() const {
    for (const char* key : {"skipped_updates", "evaluations_since_best"}) {
      require(key, "a whole number", [](const Json& value) { return is_whole(value); });
    }
    for (const char* key : {"seconds", "best_eval_loss"}) {
      require(key, "a number", [](const Json& value) { return value.is_number(); });
    }
    require("identity", "an object", [](const Json& value) { return value.is_object(); });
    require("optimizer", "an object of numbers, with that of a step under \"frozen_at\"",
            are_numbers);
    require("residuals", "null or an object with a \"codec\" and a number of \"ranks\"",
            [](const Json& value) { return value.is_null() || is_residuals(value); });
    check_sites();
    check_blocks();
    check_expert_load();
  }

 private:
  template <typename Holds>
  void require(const char* key, const std::string& wanted, const Holds& holds) const {
    const auto found = trainer_.find(key);
    if (found == trainer_.end() || holds(*found)) return;
    throw Error(ErrorCode::data, fmt::format("{}: \"trainer.{}\" is not {}", file_, key, wanted),
                "heddle did not write it so: restore the checkpoint from a copy, remove its folder "
                "to go on from an older one, or start over with --fresh");
  }

  static bool are_numbers(const Json& value) {
    constexpr double kMostSteps = 0x1p53;  // a double tells each from the next
    if (!value.is_object()) return false;
    const auto is_step = [](double number) { return number >= 0 && number <= kMostSteps; };
    return std::ranges::all_of(value.items(), [&](const auto& item) {
      return item.value().is_number() &&
             (item.key() != "frozen_at" || is_step(item.value().template get<double>()));
    });
  }

  static bool is_residuals(const Json& value) {
    constexpr std::int64_t kMostRanks = 1 << 20;
    return value.is_object() && value.contains("codec") && value["codec"].is_string() &&
           value.contains("ranks") && is_whole(value["ranks"], kMostRanks);
  }

  static bool are_whole(const Json& value, std::int64_t most) {
    return value.is_array() && !value.empty() &&
           std::ranges::all_of(value, [&](const Json& one) { return is_whole(one, most); });
  }

  void check_sites() const {
    require("skipped_updates_by_site", "a list of whole numbers",
            [](const Json& value) { return are_whole(value, kMost); });
    require("sites", "a list of the numbers of sites, as long as \"skipped_updates_by_site\"",
            [&](const Json& value) {
              const auto skipped = trainer_.find("skipped_updates_by_site");
              return are_whole(value, std::numeric_limits<int>::max()) &&
                     skipped != trainer_.end() && skipped->size() == value.size();
            });
  }

  bool is_block(const Json& value) const { return is_whole(value, spec_.layers - 1); }

  /// {"begin": 2, "end": 4, "before": 0, "after": 4, "weights": [0.5, 0.5]}
  bool are_left_out(const Json& blocks) const {
    if (!blocks.is_object()) return false;
    for (const char* key : {"begin", "before", "after"}) {
      if (!blocks.contains(key) || !is_block(blocks[key])) return false;
    }
    if (!blocks.contains("end") || !is_whole(blocks["end"], spec_.layers) ||
        blocks["end"] <= blocks["begin"] || !blocks.contains("weights")) {
      return false;
    }
    const Json& weights = blocks["weights"];
    return weights.is_array() && weights.size() == 2 && weights[0].is_number() &&
           weights[1].is_number();
  }

  void check_blocks() const {
    require(
        "made_anew",
        fmt::format("a list of pairs, each a block (0 to {}) and a whole number", spec_.layers - 1),
        [&](const Json& value) {
          return value.is_array() && std::ranges::all_of(value, [&](const Json& pair) {
                   return pair.is_array() && pair.size() == 2 && is_block(pair[0]) &&
                          is_whole(pair[1]);
                 });
        });
    require("left_out",
            fmt::format("a list of objects that say \"begin\", \"end\", \"before\", \"after\" "
                        "(blocks 0 to {}) and two \"weights\"",
                        spec_.layers - 1),
            [&](const Json& value) {
              return value.is_array() && std::ranges::all_of(value, [&](const Json& blocks) {
                       return are_left_out(blocks);
                     });
            });
  }

  void check_expert_load() const {
    const std::int64_t numbers =
        spec_.experts ? spec_.expert_layers() * (spec_.experts->count + 2) : 0;
    require("expert_load", fmt::format("a list of {} numbers", numbers), [&](const Json& value) {
      return value.is_array() && static_cast<std::int64_t>(value.size()) == numbers &&
             std::ranges::all_of(value, [](const Json& number) { return number.is_number(); });
    });
  }

  const Json& trainer_;
  const ModelSpec& spec_;
  const std::string file_;
};

}  // namespace

void check_trainer(const Manifest& manifest, const ModelSpec& spec,
                   const std::filesystem::path& checkpoint) {
  TrainerCheck(*manifest.trainer, spec, (checkpoint / kManifestFile).string()).run();
}

}  // namespace heddle
