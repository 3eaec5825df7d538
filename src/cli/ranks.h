#pragma once

#include <functional>

#include "base/error.h"
#include "cli/sites_left.h"
#include "comm/watchdog.h"
#include "comm/world.h"
#include "tensor/device.h"

namespace heddle::cli {

/// The ranks of this run: those that a launcher started, or `local`, what --ranks asks for.
/// Error(usage) when both say different things.
int rank_count(int local);
/// The same for what only several ranks can do. `local` is 0 where --ranks is left out: then those
/// of a launcher, or two.
int several_ranks(int local);

/// Whether this process speaks to the user: the first of those that a launcher started, or the only
/// one.
bool is_first_process();

/// Whether this process prints an error that ends it: a wrong command line, which all processes of
/// one launcher have, is the first one's to say.
bool speaks(const Error& error);

/// Does what a verb does before its ranks meet: reads files and checks them. When that fails on
/// some ranks of a launcher, they meet all the same: one says it, and all end with its status,
/// instead of waiting for those that failed. Every rank must call run_on_ranks or run_on_devices
/// afterwards. (Ranks that somebody started one by one say it themselves.)
void prepare_on_ranks(const std::function<void()>& prepare);

/// Whether ranks could go on without others: they are processes that join over TCP.
bool can_meet_again();

/// Where the rank of this number on its machine computes: ranks take turns if they are more than
/// GPUs.
Device device_of(Device::Kind kind, int local_rank);

/// Runs `body` on every rank that this process has: as the one that a launcher made it, or as
/// `ranks` threads. Rethrows the failure of the rank that failed first, or throws Ended where a
/// rank has said it. `watch` says how long ranks may wait for each other.
void run_on_ranks(int ranks, const std::function<void(World&)>& body,
                  const WatchdogOptions& watch = {}, SitesLeft* left = nullptr);
/// The same for ranks that compute on a device of this kind: each gets its own (device_of), and a
/// world that also moves tensors there.
///
/// With `left`, `body` is called again on the sites that are left when others are lost
/// (run_with_sites_left).
void run_on_devices(Device::Kind kind, int ranks, const std::function<void(World&, Device)>& body,
                    const WatchdogOptions& watch = {}, SitesLeft* left = nullptr);

}  // namespace heddle::cli
