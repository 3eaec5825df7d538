#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "links/router.h"

namespace heddle::links {

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

struct NetworkOptions {
  int ranks = 2;
  std::vector<std::string> statements = {};  ///< for Router::apply
  int mtu = 1500;
  std::uint64_t seed = 1;
  /// "net.ipv4.tcp_congestion_control=reno", for every rank.
  std::vector<std::string> sysctls = {};
  /// Packets are moved so often at most: rates and losses stay as they are, every packet is up to
  /// twice so late, and whoever computes beside it keeps more of the cores.
  std::chrono::microseconds rest{0};
};

/// A network namespace for each rank, joined by shaped links. A thread moves the packets. The
/// namespaces have no names and the devices are not persistent: however the process ends, the
/// kernel takes them back once no process is left inside.
class Network {
 public:
  /// Throws Error: resources when missing() says so, usage for bad options.
  explicit Network(const NetworkOptions& options);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// What this process lacks to make one (root, /dev/net/tun).
  static std::optional<std::string> missing();
  static std::string address(int rank);

  /// Router::apply, from any thread.
  void apply(const std::string& statement);
  int namespace_of(int rank) const { return namespaces_[rank].get(); }

 private:
  void serve();

  const std::chrono::microseconds rest_;
  std::mutex mutex_;  ///< of the router
  Router router_;
  std::vector<Descriptor> namespaces_, devices_;
  Descriptor stop_;  ///< an event
  std::thread thread_;
};

/// The calling thread goes before all ordinary work of the machine, where that is allowed: for what
/// stands for hardware, and for what measures it.
void go_before_others();

/// The calling thread is in a namespace as long as this lives: its sockets belong there for ever.
class Inside {
 public:
  Inside(const Network& network, int rank);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Descriptor home_;
};

}  // namespace heddle::links
