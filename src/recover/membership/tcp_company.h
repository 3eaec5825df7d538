#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "comm/comm_backend.h"
#include "comm/tcp/tcp_join.h"
#include "recover/company.h"
#include "recover/membership/limits.h"

namespace heddle::recover {

struct TcpCompanyOptions {
  /// Of those who start a run together: they meet as ranks of one world do (join_ranks). Of a
  /// newcomer only the token is read. There must be one: who knows it can join the run.
  TcpPlace place = {};
  std::chrono::duration<double> joining{120};  ///< how long those may take to meet; 0: for ever
  /// Says to the user why they did not (JoinOptions::tell). May be absent.
  std::function<void(const std::string& text)> tell = {};
  /// Of a newcomer: where members of the run are, or were; else empty.
  std::vector<SocketAddress> contacts = {};
  Duration timeout = std::chrono::seconds(60);  ///< to find a quorum, or to be let in
  /// Nobody is taken for silent before that, where processes may get no processor for long.
  Duration least_silence = {};
  /// How long calls may wait that are not part of a step; 0: for ever.
  Duration patience = std::chrono::minutes(10);
  /// Where the first member notes how the run can be joined (members_file.h); empty: nowhere.
  std::filesystem::path members_file = {};
  /// What each epoch's world is made of in place of the connections between its hosts: NCCL over
  /// them. All ranks of the epoch call it at the same time. May be absent.
  std::function<std::shared_ptr<CommBackend>(std::shared_ptr<CommBackend>)> over = {};
  /// Told of every epoch before `next` returns it. May be absent.
  std::function<void(const Epoch&)> on_epoch = {};
  /// The port at which others reach this process, where it is not the one at which it listens,
  /// which it is given. May be absent.
  std::function<std::uint16_t(std::uint16_t own)> called_at = {};
};

/// The company of a process whose run goes on over TCP. Error(peer) where those who start together
/// do not meet, or a newcomer reaches nobody; Error(usage) without a token.
std::unique_ptr<Company> make_tcp_company(TcpCompanyOptions options);

}  // namespace heddle::recover
