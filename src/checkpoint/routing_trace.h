#pragma once

#include <filesystem>

#include "base/file_system.h"
#include "parallel/experts/expert_placement.h"

namespace heddle {

/// Routing traces as safetensors files (docs/formats/routing-trace.md). Reading throws Error(data)
/// that names file and what is wrong; writing is whole or absent.
RoutingTrace read_routing_trace(const std::filesystem::path& path);
void write_routing_trace(FileSystem& files, const std::filesystem::path& path,
                         const RoutingTrace& trace);

/// A placement, as `heddle plan experts` writes and `heddle convert` takes it: JSON, in the same
/// document.
ExpertPlacement read_expert_placement(const std::filesystem::path& path);
void write_expert_placement(FileSystem& files, const std::filesystem::path& path,
                            const ExpertPlacement& placement);

}  // namespace heddle
