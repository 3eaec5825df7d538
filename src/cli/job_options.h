#pragma once

#include <cstdint>
#include <string>

#include "planner/candidate.h"

namespace heddle::cli {

class Verb;

/// What is to be trained, as the command line says it.
struct JobOptions {
  std::string model = {}, dtype = "bf16";
  std::string optimizer = {};                  ///< empty: not given, which is adamw
  std::int64_t batch_tokens = 0, seq_len = 0;  ///< 0: not given
};

/// `options` lives until the command line is parsed.
void add_job_options(Verb verb, JobOptions& options);

/// Error(usage) for a model that is not there, a sequence that it cannot have, and tokens that are
/// not whole sequences.
planner::Job make_job(const JobOptions& options);

}  // namespace heddle::cli
