#include "train/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/strings.h"

namespace heddle {
namespace {

void describe_counts(const char* group, const CommCounts& counts, std::vector<std::string>& lines,
                     const char* when = "a step") {
  for (std::size_t op = 0; op < counts.by_op.size(); ++op) {
    const auto& [calls, bytes, wire] = counts.by_op[op];
    if (calls == 0 || static_cast<CommOp>(op) == CommOp::recv) continue;
    std::string line =
        fmt::format("{} {}: {} calls, {} {}", group, name_of(static_cast<CommOp>(op)),
                    format_thousands(calls), format_bytes(static_cast<double>(wire)), when);
    if (wire != bytes) {
      line += fmt::format(" in place of {}", format_bytes(static_cast<double>(bytes)));
    }
    lines.push_back(std::move(line));
  }
}

std::string unit_name(int unit, const ModelSpec& spec) {
  const int last = unit_count(spec) - 1;
  if (unit == 0) return "embedding";
  if (unit == last - 1) return "norm";
  if (unit == last) return "head";
  return fmt::format("layer {}", unit - 1);
}

}  // namespace

std::string describe(const MemoryPlan& memory) {
  std::string text = format_bytes(static_cast<double>(memory.peak)) + " predicted";
  const char* before = ": ";
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    if (memory.at_peak[tag] < memory.peak / 100) continue;  // too little to tell the user about
    text += fmt::format("{}{} {}", before, name_of(static_cast<MemoryTag>(tag)),
                        format_bytes(static_cast<double>(memory.at_peak[tag])));
    before = ", ";
  }
  return text;
}

std::string describe_length_limit(const MemoryPlan& memory) {
  const auto at_peak = [&](MemoryTag tag) { return memory.at_peak[static_cast<std::size_t>(tag)]; };
  const std::size_t states = at_peak(MemoryTag::parameters) + at_peak(MemoryTag::gradients) +
                             at_peak(MemoryTag::optimizer);
  const std::size_t kept = std::min(memory.kept, memory.reserved - states);
  struct Part {
    const char* what;
    std::size_t bytes;
  };
  std::array<Part, 3> parts{{{"what is kept for backward", kept},
                             {"parameters and their states", states},
                             {"what is held for a moment", memory.reserved - states - kept}}};
  std::ranges::stable_sort(parts, std::greater(), &Part::bytes);
  const auto text = [](const Part& part) {
    return fmt::format("{} ({})", part.what, format_bytes(static_cast<double>(part.bytes)));
  };
  return fmt::format("{}, then {} and {}", text(parts[0]), text(parts[1]), text(parts[2]));
}

std::string describe(const ParallelPlan& plan, const ModelSpec& spec) {
  std::string text = plan.mesh.text();
  if (plan.mesh.size(Axis::cp) > 1) {
    const ContextShape context = resolved(plan.context_shape(spec));
    text += fmt::format(", attention by {} in {} order", name_of(context.method),
                        name_of(context.order));
  }
  if (plan.mesh.size(kTokenAxes) > 1) text += fmt::format(", ZeRO {}", plan.zero);
  if (plan.sequence) text += ", sequence split over tp";
  if (plan.mesh.size(Axis::pp) > 1) {
    text += fmt::format(", schedule {} of {} stages", name_of(plan.schedule), plan.stages());
    if (plan.skip > 0.0) text += fmt::format(" of which each micro-batch skips {:g}", plan.skip);
    constexpr std::size_t kShort = 40;  // longer ones are in the run file
    if (plan.routes.size() > kShort) {
      text += " on routes of their own";
    } else if (!plan.routes.empty()) {
      text += fmt::format(" on routes {}", plan.routes);
    }
    if (plan.divides_vocabulary_over_pp()) text += ", vocabulary over pp";
  }
  if (const OuterPolicy& outer = plan.policy.outer; outer.every > 0) {
    text += fmt::format(", sites meet every {} steps", outer.every);
    if (outer.fragments > 1) text += fmt::format(" in {} fragments", outer.fragments);
    if (outer.codec) text += fmt::format(" by {}", outer.codec->name());
  }
  if (!plan.compress.is_none()) text += ", compressed: " + plan.compress.text();
  return text;
}

std::string describe_stages(const ParallelPlan& plan, const ModelSpec& spec, int pp_rank) {
  std::string text;
  for (const int stage : plan.stages_of(pp_rank)) {
    const auto [begin, end] = plan.units_of_stage[static_cast<std::size_t>(stage)];
    text += fmt::format("{}stage {}: ", text.empty() ? "" : "; ", stage);
    text += begin == end ? "passes on"
            : end - begin == 1
                ? unit_name(begin, spec)
                : fmt::format("{} to {}", unit_name(begin, spec), unit_name(end - 1, spec));
  }
  return text;
}

std::vector<std::string> describe_traffic(const MeshTraffic& traffic, const CommCounts& outer) {
  std::vector<std::string> lines;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp, Axis::kv, Axis::copy, Axis::edp,
                          Axis::ep, Axis::etp}) {
    describe_counts(name_of(axis), traffic.on(axis), lines);
  }
  describe_counts("several axes", traffic.groups, lines);
  describe_counts("pp ends", traffic.ends, lines);
  describe_counts("pp lanes", traffic.lanes, lines);
  describe_counts("site", outer, lines, "between two exchanges of the same weights");
  return lines;
}

}  // namespace heddle
