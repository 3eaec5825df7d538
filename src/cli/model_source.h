#pragma once

#include <string>

#include "model/spec.h"

namespace heddle::cli {

/// The model that a command line names: a preset, a config.json, or a model folder.
ModelSpec model_spec_of(const std::string& source);

/// Threads to compute with: `wanted`, or when 0 the cores this process may use.
int thread_count(int wanted);

}  // namespace heddle::cli
