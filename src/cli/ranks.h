#pragma once

#include <functional>

#include "comm/watchdog.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "tensor/device.h"

namespace heddle::cli {

/// The ranks of this run: those that a launcher started, or `local`, what --ranks asks for.
/// Error(usage) when both say different things.
int rank_count(int local);

/// Whether this process speaks to the user: the first of those that a launcher started, or the only
/// one.
bool is_first_process();

/// The device that a rank of this process computes on: the CPU, or the GPU of its number on this
/// machine; ranks take turns where they are more than GPUs.
Device device_of(config::DeviceName device, const World& world);

/// Runs `body` on every rank that this process has: as the one that a launcher made it, or as
/// `ranks` threads. Rethrows the failure of the rank that failed first.
/// `watch` says how long ranks may wait for each other.
void run_on_ranks(int ranks, const std::function<void(World&)>& body,
                  const WatchdogOptions& watch = {});

}  // namespace heddle::cli
