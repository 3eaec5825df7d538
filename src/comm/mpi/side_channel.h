#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// Lines of text between rank 0 and every other rank over TCP, beside MPI: it works while MPI calls
/// hang. Used by one thread, but for wake().
class SideChannel {
 public:
  /// All ranks make theirs at the same time; `from_first` gives everybody the text of rank 0. Error
  /// (peer) when they do not find each other.
  SideChannel(int rank, int size, const std::function<std::string(std::string)>& from_first);
  ~SideChannel();
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  struct Event {
    int rank = 0;
    bool is_closed = false;  ///< the other side is gone; else a line came
    std::string line = {};
  };
  /// What came; returns early when something does, or on wake().
  std::vector<Event> wait(std::chrono::milliseconds longest);
  /// Any thread.
  void wake() noexcept;
  /// Rank 0 to a rank, others to rank 0. Never blocks: what the other side does not take is kept,
  /// and beyond a bound dropped unless `must_arrive`. No line feeds in the line.
  void send(int rank, std::string_view line, bool must_arrive = false);
  /// Gives what is kept a last chance.
  void flush(std::chrono::milliseconds longest);

 private:
  struct Link {
    int rank = 0, socket = -1;
    std::string in = {}, out = {};
  };
  void listen_and_accept(int size, const std::function<std::string(std::string)>& from_first);
  void connect(int rank, const std::string& address);
  void write(Link& link);
  void read(Link& link, std::vector<Event>& events);

  int wake_ = -1;
  std::vector<Link> links_;
};

}  // namespace heddle
