#include "cli/job_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/verb.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

DType dtype_named(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  return name == "f16" ? DType::f16 : DType::f32;
}

}  // namespace

planner::Job make_job(const JobOptions& options) {
  planner::Job job;
  job.spec = named_model(options.model);
  job.seq_len = options.seq_len > 0 ? options.seq_len
                                    : std::min<std::int64_t>(2048, job.spec.longest_sequence());
  if (job.seq_len > job.spec.max_positions && !job.spec.rope) {
    throw Error(ErrorCode::usage,
                fmt::format("--seq {} is longer than the model's table of {} positions",
                            job.seq_len, job.spec.max_positions),
                fmt::format("use at most {}", job.spec.max_positions));
  }
  if (options.batch_tokens % job.seq_len != 0) {
    throw Error(ErrorCode::usage,
                fmt::format("--batch-tokens {} is not a multiple of the sequence length {}",
                            options.batch_tokens, job.seq_len),
                fmt::format("use {}", (options.batch_tokens / job.seq_len + 1) * job.seq_len));
  }
  job.batch = options.batch_tokens / job.seq_len;
  const auto updates = options.optimizer.empty() ? planner::Updates::adamw
                                                 : planner::updates_named(options.optimizer);
  job.stack = planner::Stack::heddle(dtype_named(options.dtype), updates);
  return job;
}

void add_job_options(Verb verb, JobOptions& options) {
  verb.add_option("--model", options.model, "preset name, config.json or model folder");
  verb.add_option("--batch-tokens", options.batch_tokens, "tokens per optimizer step").positive();
  verb.add_option("--seq", options.seq_len,
                  "tokens per sequence; 2048 or what the model has when absent")
      .positive();
  verb.add_option("--dtype", options.dtype, "of the computation")
      .one_of({"bf16", "f16", "f32"})
      .show_default();
  verb.add_option("--optimizer", options.optimizer,
                  "whose states and updates are planned for; adamw when absent")
      .one_of({planner::updates_names().begin(), planner::updates_names().end()});
}

}  // namespace heddle::cli
