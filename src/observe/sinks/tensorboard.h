#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "observe/metrics.h"

namespace heddle::observe {

/// `events.out.tfevents.<time>.<host>` in the run folder, as TensorBoard reads it: TFRecord frames
/// (length, masked CRC-32C of the length, payload, masked CRC-32C of the payload, little-endian)
/// around hand-encoded `Event` messages. Every run or resumption writes a file of its own.
class TensorBoardSink : public Sink {
 public:
  /// With `resume_step`, the file says that the session restarts after that step, which makes
  /// TensorBoard drop later points of older files.
  TensorBoardSink(const std::filesystem::path& folder, std::optional<std::int64_t> resume_step);

  std::string_view name() const override { return "TensorBoard"; }
  void on_step(const StepMetrics& metrics) override;
  void on_eval(const EvalMetrics& metrics) override;
  void on_event(const RunEvent&) override {}
  void close() override;

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& payload);

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace heddle::observe
