#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "observe/metrics.h"

namespace heddle::observe {

/// `metrics.jsonl`: one object per step, per evaluation and per meeting of sites, on disk (in the
/// system's hands) when the call returns. Numbers that are not finite, and an unknown MFU, are
/// null.
class JsonlSink : public Sink {
 public:
  /// A new file, or with `resume_step` the old one with every line after that step cut, so that the
  /// curve goes on without duplicates; a line torn by a kill is cut too.
  JsonlSink(std::filesystem::path path, std::optional<std::int64_t> resume_step);

  std::string_view name() const override { return "metrics.jsonl"; }
  void on_step(const StepMetrics& metrics) override;
  void on_eval(const EvalMetrics& metrics) override;
  void on_event(const RunEvent& event) override;
  void close() override;

 private:
  void write(const std::string& line);

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace heddle::observe
