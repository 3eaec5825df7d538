#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "config/schema.h"

namespace heddle::config {

/// The keys meant by "optim.lr", "optim" or "all"; throws Error(usage) with the nearest name when
/// there are none.
std::vector<const Key*> keys_named(const std::string& what);

/// One key for a terminal: type, default, help, explanation, names in other systems.
std::string explain(const Key& key);

/// The default as text: a value, or what an absent one means.
std::string default_text(const Key& key);

/// The reference of the run file in Markdown: docs/run-file.md.
std::string explain_markdown();

/// Every value with its origin, in aligned columns, and what follows from them (micro-batches per
/// step, steps, folder).
std::string describe_run(const LoadedRun& run);

/// Where a key's value came from: "default", "run.toml:14", "--set".
std::string origin_of(const Key& key, const Origins& origins);

}  // namespace heddle::config
