#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/manifest.h"
#include "config/run_config.h"
#include "train/run_identity.h"

namespace heddle {

/// Compares what a run is now with what it was when the checkpoint was written.
///
/// Another model or tokenizer is refused. Changes that make another run of it (Scope::run) are
/// refused with a table of then and now, unless they are accepted: then the table is a warning. All
/// else may change. train.steps counts as a change only where a step already done would have had
/// another learning rate: else the run is what it would have been with the new number from the
/// start. With another optimizer the refusal says that its states would be left behind. Refusals
/// are Error(usage).
void check_resumable(const std::filesystem::path& checkpoint, const Manifest& manifest,
                     const RunIdentity& now, const config::RunConfig& config,
                     bool changes_are_accepted);

/// What of this name was another when the checkpoint was written; nothing where it was not, or is
/// not known.
std::optional<RunIdentity::Difference> changed_since(const Manifest& manifest,
                                                     const RunIdentity& now,
                                                     const std::string& name);

/// Whether the checkpoint's optimizer was another one, so that its states mean nothing now.
bool was_other_optimizer(const Manifest& manifest, const RunIdentity& now);

/// Whether a larger train.steps gives steps up to `step` another learning rate.
bool longer_run_changes_rate(const config::RunConfig& config, std::int64_t step);

}  // namespace heddle
