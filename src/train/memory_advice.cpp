#include "train/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/strings.h"
#include "train/model_setup.h"
#include "train/plan_text.h"

namespace heddle {
namespace {

using config::RunConfig;

constexpr int kMostRanks = 1024;

/// The run with something changed.
struct Variant {
  std::string text;  ///< "parallel.zero = 3"
  RunConfig config;
  int ranks = 1;
};

std::size_t at_peak(const MemoryPlan& memory, MemoryTag tag) {
  return memory.at_peak[static_cast<std::size_t>(tag)];
}

class Advice {
 public:
  Advice(const RunConfig& config, const ModelSpec& spec, int ranks, Device device,
         std::uint64_t limit)
      : spec_(spec), device_(device), limit_(limit), now_{"", config, ranks} {}

  /// What fits of one kind of change each, at most two; else all at once; else on more ranks.
  std::string text(const MemoryPlan& needed) const {
    const std::size_t states = at_peak(needed, MemoryTag::parameters) +
                               at_peak(needed, MemoryTag::gradients) +
                               at_peak(needed, MemoryTag::optimizer);
    auto kinds = {activation_changes(), state_changes()};
    std::vector<std::string> found;
    for (const auto& changes : kinds) {
      if (const auto fitting = first_that_fits(changes)) found.push_back(*fitting);
    }
    if (found.size() == 2 && states > needed.peak / 2) std::swap(found[0], found[1]);
    if (!found.empty()) return fmt::format("{}", fmt::join(found, ", "));
    const Variant least = with_everything(now_);
    if (const auto fitting = first_that_fits({least})) return *fitting;
    if (const auto fitting = first_that_fits(more_ranks())) return *fitting;
    return fmt::format(
        "no ZeRO stage, tp, pp, train.microbatch or train.recompute is enough, nor are up to {} "
        "ranks; lower data.seq_len or choose a smaller model",
        kMostRanks);
  }

 private:
  std::optional<std::string> first_that_fits(const std::vector<Variant>& variants) const {
    for (const Variant& variant : variants) {
      const auto bytes = needed_by(variant);
      if (!bytes || *bytes > limit_) continue;
      return fmt::format("{} would need {}", variant.text,
                         format_bytes(static_cast<double>(*bytes)));
    }
    return std::nullopt;
  }

  /// Of the fuller of the first and the last pipeline rank; none where there can be no such run.
  std::optional<std::size_t> needed_by(const Variant& variant) const {
    const RunConfig& config = variant.config;
    if (config.tokens_per_step() % config.tokens_per_microbatch() != 0) return std::nullopt;
    try {
      const ParallelPlan plan = configured_plan(config, spec_, variant.ranks);
      const int last = plan.mesh.size(kStageAxes) * (plan.mesh.size(Axis::pp) - 1);
      std::size_t most = plan_rank(config, spec_, plan, 0, device_).memory.reserved;
      if (last > 0) {
        most = std::max(most, plan_rank(config, spec_, plan, last, device_).memory.reserved);
      }
      return most;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::usage) return std::nullopt;  // this model cannot be cut so
      throw;
    }
  }

  Variant changed(const Variant& from, const std::string& text, const auto& change) const {
    Variant variant = from;
    variant.text += (variant.text.empty() ? "" : " with ") + text;
    change(variant.config);
    return variant;
  }

  std::vector<Variant> activation_changes() const {
    std::vector<Variant> all;
    const RunConfig& config = now_.config;
    if (config.parallel.schedule == Pipeline::gpipe) {
      all.push_back(changed(now_, "parallel.schedule = \"1f1b\"",
                            [](RunConfig& c) { c.parallel.schedule = Pipeline::one_f_one_b; }));
    }
    if (config.parallel.tp > 1 && !config.parallel.sequence) {
      all.push_back(changed(now_, "parallel.sequence = true",
                            [](RunConfig& c) { c.parallel.sequence = true; }));
    }
    for (std::int64_t size = config.train.microbatch / 2; size > 0; size /= 2) {
      all.push_back(changed(now_, fmt::format("train.microbatch = {}", size),
                            [=](RunConfig& c) { with_microbatch(c, size); }));
    }
    if (config.train.recompute == config::Recompute::none) {
      all.push_back(changed(now_, "train.recompute = \"block\"",
                            [](RunConfig& c) { c.train.recompute = config::Recompute::block; }));
    }
    if (build_options(config, spec_).loss_chunk > kSmallLossChunk) {
      all.push_back(changed(now_, fmt::format("train.loss_chunk = {}", kSmallLossChunk),
                            [](RunConfig& c) { c.train.loss_chunk = kSmallLossChunk; }));
    }
    return all;
  }

  std::vector<Variant> state_changes() const {
    std::vector<Variant> all;
    const auto& parallel = now_.config.parallel;
    for (int zero = parallel.zero + 1; parallel.dp > 1 && zero <= 3; ++zero) {
      all.push_back(changed(now_, fmt::format("parallel.zero = {}", zero),
                            [=](RunConfig& c) { c.parallel.zero = zero; }));
    }
    for (int by = 2; by <= parallel.dp; by *= 2) {
      if (parallel.dp % by != 0) break;
      for (const auto axis : {&ParallelRequest::tp, &ParallelRequest::pp}) {
        const char* name = axis == &ParallelRequest::tp ? "tp" : "pp";
        all.push_back(changed(
            now_,
            fmt::format("parallel.{} = {} (dp = {})", name, parallel.*axis * by, parallel.dp / by),
            [=](RunConfig& c) {
              c.parallel.*axis *= by;
              c.parallel.dp /= by;
            }));
      }
    }
    return all;
  }

  /// The step keeps its tokens where the run file says how many.
  static void with_microbatch(RunConfig& config, std::int64_t size) {
    config.train.tokens_per_step = config.tokens_per_step();
    config.train.microbatch = size;
  }

  Variant with_everything(const Variant& from) const {
    Variant variant = from;
    std::vector<std::string> changes;
    if (variant.config.parallel.dp > 1 && variant.config.parallel.zero < 3) {
      variant.config.parallel.zero = 3;
      changes.push_back("parallel.zero = 3");
    }
    if (variant.config.train.microbatch > 1) {
      with_microbatch(variant.config, 1);
      changes.push_back("train.microbatch = 1");
    }
    if (variant.config.train.recompute == config::Recompute::none) {
      variant.config.train.recompute = config::Recompute::block;
      changes.push_back("train.recompute = \"block\"");
    }
    variant.text = fmt::format("{}{}{}", variant.text, variant.text.empty() ? "" : " with ",
                               fmt::join(changes, " and "));
    return variant;
  }

  /// Twice, four times, ... as many: as replicas that divide everything, or along tp, or both.
  std::vector<Variant> more_ranks() const {
    std::vector<Variant> all;
    const char* where = device_.kind == Device::Kind::cpu && now_.config.run.memory_limit == 0
                            ? " (each with memory of its own)"
                            : "";
    for (int by = 2; now_.ranks * by <= kMostRanks; by *= 2) {
      Variant more = now_;
      more.ranks *= by;
      const auto divided = [&](const std::string& how, const auto& change) {
        Variant variant = more;
        variant.text = fmt::format("--ranks {}{} with {}", more.ranks, where, how);
        change(variant.config.parallel);
        all.push_back(variant);
      };
      divided("parallel.zero = 3", [&](ParallelRequest& p) {
        p.dp *= by;
        p.zero = 3;
      });
      divided(fmt::format("parallel.tp = {}", now_.config.parallel.tp * by),
              [&](ParallelRequest& p) { p.tp *= by; });
      divided(fmt::format("parallel.pp = {}", now_.config.parallel.pp * by),
              [&](ParallelRequest& p) { p.pp *= by; });
      Variant least = more;
      least.text = fmt::format("--ranks {}{}", more.ranks, where);
      least.config.parallel.dp *= by;
      all.push_back(with_everything(least));
    }
    return all;
  }

  static constexpr std::int64_t kSmallLossChunk = 128;

  const ModelSpec& spec_;
  const Device device_;
  const std::uint64_t limit_;
  const Variant now_;
};

}  // namespace

Error memory_refusal(const config::RunConfig& config, const ModelSpec& spec,
                     const ParallelPlan& parallel, Device device, const MemoryPlan& needed,
                     std::uint64_t limit_bytes) {
  std::string tags;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    if (needed.at_peak[tag] == 0) continue;
    tags += fmt::format("{}{} {}", tags.empty() ? "" : ", ", name_of(static_cast<MemoryTag>(tag)),
                        format_bytes(static_cast<double>(needed.at_peak[tag])));
  }
  const Advice advice(config, spec, parallel.mesh.ranks(), device, limit_bytes);
  return Error(
      ErrorCode::resources,
      fmt::format("the run needs {} at its peak, but {} may be used ({}); most of it is {}",
                  format_bytes(static_cast<double>(needed.reserved)),
                  format_bytes(static_cast<double>(limit_bytes)), tags,
                  describe_length_limit(needed)),
      advice.text(needed));
}

}  // namespace heddle
