#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/tcp/tcp_callers.h"
#include "comm/tcp/tcp_post.h"
#include "recover/membership/limits.h"
#include "recover/membership/note.h"
#include "recover/membership/status.h"

namespace heddle::recover {

/// Connections between the processes of a run that outlive its worlds. Each process has a socket
/// at which it can be called as long as it lives, and a TcpPost to everybody to whom it has
/// something to say. Who calls has to know the run's token, and every message is sealed with it.
/// A thread takes in what comes.
class MemberLinks {
 public:
  /// Called on that thread.
  struct Events {
    std::function<void(const Note&)> on_note;
    std::function<void(const Status&)> on_status;
    /// Somebody who has sent something has closed its last connection, or its process is gone.
    std::function<void(MemberId)> on_closed;
    /// A connection of a world: its hello says of which epoch (Hello::meeting) and rank.
    std::function<void(Callers::Guest)> on_caller;
    /// Some times per heartbeat.
    std::function<void()> on_tick;
  };

  MemberLinks(Socket listening, const Hello& own, const Token& token, Events events);
  ~MemberLinks();
  MemberLinks(const MemberLinks&) = delete;
  MemberLinks& operator=(const MemberLinks&) = delete;

  /// From now on events may come, until stop().
  void start();
  void stop();
  /// Any thread; returns at once.
  void send(const Member& to, const TcpPost::Message& message);
  /// Closes connections to all others than these.
  void keep_only(const std::vector<Member>& members);
  /// Of those to whom something was sent: why they do not let this process in.
  std::vector<std::string> refusals() const;
  /// The longest to anybody.
  Duration round_trip() const;
  /// Returns when everything is on its way, or cannot be by then.
  void flush(std::chrono::steady_clock::time_point until);

 private:
  struct Incoming {
    Socket socket;
    SocketAddress address;
    std::vector<std::byte> bytes = {};
    MemberId from = 0;
    bool is_open = true;
  };
  using Address = std::pair<std::uint32_t, std::uint16_t>;

  void run();
  void wait_for_news();
  void take_callers();
  void read(Incoming& incoming);
  /// Whether it has another connection, by which it has sent something.
  bool is_still_there(MemberId member) const;
  /// Takes whole messages off the front of what came; false where it is none.
  bool take_messages(Incoming& incoming);
  bool take_message(Incoming& incoming, std::span<const std::byte> message);
  void refuse(Incoming& incoming, const Error& why);

  const Hello own_;
  const Token token_;
  const Events events_;
  Callers callers_;
  std::vector<Incoming> incoming_;
  int refused_ = 0;
  mutable std::mutex mutex_;  // of what follows
  std::map<Address, std::shared_ptr<TcpPost>> posts_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle::recover
