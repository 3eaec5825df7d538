#pragma once

#include <filesystem>
#include <vector>

#include "comm/tcp/tcp_socket.h"
#include "recover/membership/note.h"

namespace heddle::recover {

// Where newcomers find a run: a line "address:port" for each of its members.

/// A run does not end because this cannot be written: it is only said.
void write_members(const std::filesystem::path& file, const Roster& roster);
/// Error(data) where there is none, or it says something else.
std::vector<SocketAddress> read_members(const std::filesystem::path& file);

}  // namespace heddle::recover
