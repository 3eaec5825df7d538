#include "observe/sinks/tensorboard.h"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "observe/machine.h"

namespace heddle::observe {
namespace {

static_assert(std::endian::native == std::endian::little);

// The few protobuf rules we need. A field starts with (number << 3 | wire type).
enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(0x80 | (value & 0x7F)));
  out.push_back(static_cast<char>(value));
}
void put_tag(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}
template <class T>
void put_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_bytes(std::string& out, unsigned field, std::string_view value) {
  put_tag(out, field, Wire::bytes);
  put_varint(out, value.size());
  out.append(value);
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//         SessionLog session_log = 7; }
std::string event_header(std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_tag(event, 1, Wire::fixed64);
  put_raw(event, std::chrono::duration<double>(now).count());
  put_tag(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

// Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }
void put_scalar(std::string& summary, std::string_view tag, double value) {
  std::string entry;
  put_bytes(entry, 1, tag);
  put_tag(entry, 2, Wire::fixed32);
  put_raw(entry, static_cast<float>(value));
  put_bytes(summary, 1, entry);
}

std::string summary_event(std::int64_t step, const std::string& summary) {
  std::string event = event_header(step);
  put_bytes(event, 5, summary);
  return event;
}

// SessionLog { enum status = 1, where START = 1; }
std::string restart_event(std::int64_t first_step) {
  std::string log, event = event_header(first_step);
  put_tag(log, 1, Wire::varint);
  put_varint(log, 1);
  put_bytes(event, 7, log);
  return event;
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// Two sessions within one second must not share a file.
std::filesystem::path free_name(const std::filesystem::path& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  while (true) {
    auto path = folder / fmt::format("events.out.tfevents.{}.{}", seconds, host_name());
    if (!std::filesystem::exists(path)) return path;
    ++seconds;
  }
}

}  // namespace

TensorBoardSink::TensorBoardSink(const std::filesystem::path& folder,
                                 std::optional<std::int64_t> resume_step)
    : path_(free_name(folder)), file_(std::fopen(path_.c_str(), "wbe")) {
  if (file_ == nullptr) {
    throw Error(ErrorCode::resources,
                fmt::format("cannot create {}: {}", path_.string(), std::strerror(errno)),
                "choose a run folder you may write to");
  }
  std::string version = event_header(0);
  put_bytes(version, 3, "brain.Event:2");
  write_record(version);
  if (resume_step) write_record(restart_event(*resume_step + 1));
}

void TensorBoardSink::write_record(const std::string& payload) {
  std::string length, record;
  put_raw(length, static_cast<std::uint64_t>(payload.size()));
  record += length;
  put_raw(record, masked_crc(length));
  record += payload;
  put_raw(record, masked_crc(payload));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0) {
    fail(ErrorCode::resources, "cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

void TensorBoardSink::on_step(const StepMetrics& m) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  std::string summary;
  put_scalar(summary, "train/loss", m.loss);
  put_scalar(summary, "train/grad_norm", m.grad_norm);
  if (m.residual) put_scalar(summary, "train/residual", *m.residual);
  for (const ExpertLoad& layer : m.expert_load) {
    put_scalar(summary, fmt::format("experts/layer_{}_most_over_mean", layer.layer),
               layer.most_over_mean());
  }
  put_scalar(summary, "train/lr", m.lr);
  put_scalar(summary, "perf/tokens_per_second", m.tokens_per_second);
  if (m.mfu) put_scalar(summary, "perf/mfu", *m.mfu);
  put_scalar(summary, "memory/peak_gib", static_cast<double>(m.memory_bytes) / kGib);
  put_scalar(summary, "time/data_wait_ms", m.data_wait_seconds * 1e3);
  write_record(summary_event(m.step, summary));
}

void TensorBoardSink::on_eval(const EvalMetrics& m) {
  std::string summary;
  put_scalar(summary, "eval/loss", m.loss);
  for (const SourceLoss& source : m.sources) {
    put_scalar(summary, "eval/loss/" + source.name, source.loss);
  }
  write_record(summary_event(m.step, summary));
}

void TensorBoardSink::close() {
  if (std::fclose(file_.release()) != 0) {
    fail(ErrorCode::resources, "cannot close {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace heddle::observe
