#pragma once

#include "cli/launcher.h"
#include "comm/tcp/tcp_join.h"
#include "comm/tcp/tcp_token.h"

namespace heddle::cli {

inline constexpr const char* kTokenVariable = "HEDDLE_TOKEN";
inline constexpr const char* kTokenFileVariable = "HEDDLE_TOKEN_FILE";

/// What ranks that join over TCP must all know: the first line of the file HEDDLE_TOKEN_FILE, or
/// the text of HEDDLE_TOKEN. Empty where neither is set. Error(usage) where both are, the file
/// cannot be read, or the token can be guessed.
Token run_token(const Environment& environment);

/// Connections that share large messages between two ranks: HEDDLE_SOCKETS, or 0 where it is not
/// set or "auto": chosen by measurement. Error(usage) where it is neither.
int socket_count(const Environment& environment);

/// Where the rank that a launcher made of this process finds the others.
TcpPlace tcp_place(const Launcher& launcher, const Environment& environment);

}  // namespace heddle::cli
