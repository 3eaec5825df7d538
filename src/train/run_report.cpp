#include "train/run_report.h"

#include "base/clock.h"
#include "base/strings.h"
#include "observe/machine.h"
#include "observe/report.h"
#include "tensor/device_runtime.h"

namespace heddle {

std::string describe(const ModelSpec& spec) {
  return fmt::format(
      "{}, {} parameters: {} layers of width {}, {} heads ({} for keys and values), vocabulary {}",
      spec.family, format_count(static_cast<double>(spec.parameter_count())), spec.layers,
      spec.hidden, spec.heads, spec.kv_heads, format_thousands(spec.vocab));
}

namespace {

bool is_message(CommOp op) { return op == CommOp::send || op == CommOp::recv; }

std::vector<observe::CommunicationRow> communication_rows(const RunSummary& summary) {
  std::vector<observe::CommunicationRow> rows;
  // Documents are not predicted, nor how many bytes lossless codecs make of values.
  const auto is_at_most = [&](std::string_view group, CommOp op, std::int64_t wire,
                              std::int64_t payload) {
    return (summary.masks_documents && group == "cp" && is_message(op)) ||
           (summary.has_lossless && wire != payload);
  };
  MeshTraffic predicted = summary.predicted_traffic, counted = summary.counted_traffic;
  predicted.with(
      counted, [&](const char* group, const CommCounts& expected, const CommCounts& seen) {
        for (std::size_t op = 0; op < kCommOps; ++op) {
          const auto& [calls, payload, wire] = expected.by_op[op];
          const auto& [calls_seen, payload_seen, wire_seen] = seen.by_op[op];
          if (calls == 0 && calls_seen == 0) continue;
          rows.push_back({.axis = group,
                          .operation = std::string(name_of(static_cast<CommOp>(op))),
                          .predicted_calls = static_cast<std::uint64_t>(calls),
                          .counted_calls = static_cast<std::uint64_t>(calls_seen),
                          .predicted_bytes = static_cast<std::uint64_t>(wire),
                          .counted_bytes = static_cast<std::uint64_t>(wire_seen),
                          .is_at_most = is_at_most(group, static_cast<CommOp>(op), wire, payload),
                          .predicted_payload = static_cast<std::uint64_t>(payload),
                          .counted_payload = static_cast<std::uint64_t>(payload_seen)});
        }
      });
  return rows;
}

}  // namespace

std::string device_name(Device device) {
  if (device.kind == Device::Kind::cpu) {
    const std::string model = observe::inspect_machine().cpu_model;
    return model.empty() ? "CPU" : model;
  }
  return device_runtime::device_model(device).name;
}

void write_run_report(const std::filesystem::path& folder, const ModelSpec& spec,
                      const RunState& state, const RunSummary& summary) {
  observe::RunReport report;
  report.title = summary.name;
  report.model = describe(spec);
  report.settings = summary.settings;
  report.starts = observe::read_starts(folder / "starts.jsonl");
  report.ended = utc_time();
  report.history = observe::read_history(folder / "metrics.jsonl");
  report.best_possible_loss = summary.best_possible_loss;
  report.step_time = summary.step_time;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    const std::size_t predicted = summary.predicted.at_peak[tag];
    const std::size_t measured = summary.measured.at_peak[tag];
    if (predicted == 0 && measured == 0) continue;
    report.memory.push_back(
        {std::string(name_of(static_cast<MemoryTag>(tag))), predicted, measured});
  }
  report.memory_total = {"total", summary.predicted.peak, summary.measured.peak};
  report.peak_resident_bytes = observe::process_peak_bytes();
  report.ranks = summary.ranks;
  report.timelines = summary.timelines;
  if (!summary.ranks.empty()) report.communication = communication_rows(summary);
  report.attention = summary.attention;
  report.expert_exchanges = summary.expert_exchanges;
  report.epochs = observe::read_epochs(folder / "epochs.jsonl");
  report.speeds = speed_rows(summary.work, report.history);
  report.samples = summary.samples;
  report.warnings = summary.warnings;
  report.totals = {.steps = state.step, .tokens = state.tokens, .seconds = state.seconds};
  if (!report.history.loss.empty()) report.totals.final_loss = report.history.loss.back().value;
  observe::write_report_json(folder / "report.json", report);
  observe::write_report_html(folder / "report.html", report);
}

}  // namespace heddle
