#include "observe/sinks/jsonl.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "observe/history.h"

namespace heddle::observe {
namespace {

// JSON has no NaN; the shortest digits that read back to the same double.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}
std::string number(const std::optional<double>& value) { return value ? number(*value) : "null"; }

std::string load_of(const std::vector<ExpertLoad>& layers) {
  std::string text;
  for (const ExpertLoad& layer : layers) {
    text += fmt::format("{}{{\"layer\":{},\"counts\":[{}],\"dropped\":{},\"lost_tokens\":{}}}",
                        text.empty() ? "" : ",", layer.layer, fmt::join(layer.counts, ","),
                        layer.dropped, layer.lost_tokens);
  }
  return text.empty() ? "" : fmt::format(",\"expert_load\":[{}]", text);
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ",") + number(value);
  return text;
}

}  // namespace

JsonlSink::JsonlSink(std::filesystem::path path, std::optional<std::int64_t> resume_step)
    : path_(std::move(path)) {
  const bool keeps = resume_step && std::filesystem::exists(path_);
  if (keeps) {
    write_file_atomically(real_file_system(), path_,
                          metrics_lines_until(read_text_file(path_), *resume_step));
  }
  file_.reset(std::fopen(path_.c_str(), keeps ? "ae" : "we"));
  if (file_ == nullptr) {
    throw Error(ErrorCode::resources,
                fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)),
                "choose a run folder you may write to");
  }
}

void JsonlSink::write(const std::string& line) {
  if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) {
    fail(ErrorCode::resources, "cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

void JsonlSink::on_step(const StepMetrics& m) {
  write(fmt::format(
      "{{\"step\":{},\"tokens\":{},\"loss\":{},\"grad_norm\":{},\"lr\":{},"
      "\"step_seconds\":{},\"tokens_per_second\":{},\"mfu\":{},"
      "\"data_wait_seconds\":{}{}{}{}}}\n",
      m.step, m.tokens, number(m.loss), number(m.grad_norm), number(m.lr), number(m.step_seconds),
      number(m.tokens_per_second), number(m.mfu), number(m.data_wait_seconds),
      m.residual ? fmt::format(",\"residual\":{}", number(m.residual)) : "", load_of(m.expert_load),
      m.block_seconds.empty() ? ""
                              : fmt::format(",\"block_seconds\":[{}]", list(m.block_seconds))));
}

void JsonlSink::on_eval(const EvalMetrics& m) {
  std::string sources;
  for (const SourceLoss& source : m.sources) {
    sources += fmt::format("{}{}:{}", sources.empty() ? "" : ",", Json(source.name).dump(),
                           number(source.loss));
  }
  write(fmt::format("{{\"step\":{},\"eval_loss\":{},\"eval_perplexity\":{}{}}}\n", m.step,
                    number(m.loss), number(m.perplexity),
                    sources.empty() ? "" : fmt::format(",\"eval_sources\":{{{}}}", sources)));
}

void JsonlSink::on_event(const RunEvent& event) {
  const auto* const met = std::get_if<SitesMet>(&event);
  if (met == nullptr) return;
  write(
      fmt::format("{{\"step\":{},\"sites_loss\":{},\"sites\":[{}],\"site_losses\":[{}],\"sites_"
                  "waited\":[{}]}}\n",
                  met->step, number(met->loss), fmt::join(met->sites, ","), list(met->losses),
                  list(met->waited)));
}

void JsonlSink::close() {
  if (std::fclose(file_.release()) != 0) {
    fail(ErrorCode::resources, "cannot close {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace heddle::observe
