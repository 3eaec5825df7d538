#include "links/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace heddle::links {
namespace {

constexpr std::uint32_t kNetwork = 10 << 24 | 78 << 16;  // 10.78.0.0
constexpr int kMostRanks = 250;
constexpr int kReadsInARow = 64;
constexpr int kLargestPacket = 65535;

int require(int result, const char* what) {
  if (result < 0) {
    throw Error(ErrorCode::resources, fmt::format("{} failed: {}", what, std::strerror(errno)),
                "shaped links need root and /dev/net/tun");
  }
  return result;
}

Descriptor own_namespace() {
  return Descriptor(require(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC),
                            "opening the network namespace"));
}

void go_to(const Descriptor& space) {
  require(::setns(space.get(), CLONE_NEWNET), "entering a network namespace");
}

Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

/// Sets an interface up, of the namespace of the calling thread.
class Interface {
 public:
  explicit Interface(const char* name)
      : socket_(require(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "opening a socket")) {
    std::strncpy(request_.ifr_name, name, IFNAMSIZ - 1);
  }
  void set_address(unsigned long which, std::uint32_t address) {
    sockaddr_in socket_address{};
    socket_address.sin_family = AF_INET;
    socket_address.sin_addr.s_addr = htonl(address);
    std::memcpy(&request_.ifr_addr, &socket_address, sizeof(socket_address));
    set(which, "setting an address");
  }
  void set_mtu(int mtu) {
    request_.ifr_mtu = mtu;
    set(SIOCSIFMTU, "setting the MTU");
  }
  void set_queue(int packets) {
    request_.ifr_qlen = packets;
    set(SIOCSIFTXQLEN, "setting the length of a queue");
  }
  void start() {
    request_.ifr_flags = IFF_UP | IFF_RUNNING;
    set(SIOCSIFFLAGS, "starting an interface");
  }

 private:
  void set(unsigned long which, const char* what) {
    require(::ioctl(socket_.get(), which, &request_), what);
  }

  Descriptor socket_;
  ifreq request_{};
};

/// The TUN device of a rank, in the namespace of the calling thread.
Descriptor make_device(int rank, int mtu) {
  Descriptor device(
      require(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "opening /dev/net/tun"));
  ifreq request{};
  std::strncpy(request.ifr_name, "link", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  require(::ioctl(device.get(), TUNSETIFF, &request), "making a TUN device");
  Interface link("link");
  link.set_address(SIOCSIFADDR, kNetwork + rank + 1);
  link.set_address(SIOCSIFNETMASK, 0xffffff00);
  link.set_mtu(mtu);
  link.set_queue(10000);  // only the pipes shall drop packets
  link.start();
  Interface("lo").start();
  return device;
}

void write_sysctl(const std::string& assignment) {
  const auto equals = assignment.find('=');
  std::string path = assignment.substr(0, equals);
  std::replace(path.begin(), path.end(), '.', '/');
  std::ofstream file("/proc/sys/" + path);
  if (equals != std::string::npos) file << assignment.substr(equals + 1) << std::flush;
  if (equals == std::string::npos || !file) {
    fail(ErrorCode::usage,
         "sysctl '{}' cannot be set here: use a name and a value of sysctl, as in"
         " net.ipv4.tcp_congestion_control=reno",
         assignment);
  }
}

/// The rank to whom an IPv4 packet goes, or -1.
int destination(const char* packet, std::size_t bytes) {
  if (bytes < 20 || packet[0] >> 4 != 4) return -1;
  std::uint32_t address = 0;
  std::memcpy(&address, packet + 16, sizeof(address));
  address = ntohl(address);
  return address > kNetwork && address <= kNetwork + kMostRanks
             ? static_cast<int>(address - kNetwork) - 1
             : -1;
}

const NetworkOptions& checked(const NetworkOptions& options) {
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    fail(ErrorCode::usage, "{} ranks cannot be linked: use 1 to {}", options.ranks, kMostRanks);
  }
  if (options.mtu < 576 || options.mtu > kLargestPacket) {
    fail(ErrorCode::usage, "an MTU of {} is not possible: use 576 to {}", options.mtu,
         kLargestPacket);
  }
  return options;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void go_before_others() {
  const sched_param priority{.sched_priority = 1};
  ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &priority);
}

Inside::Inside(const Network& network, int rank) : home_(own_namespace()) {
  require(::setns(network.namespace_of(rank), CLONE_NEWNET), "entering a network namespace");
}

Inside::~Inside() { go_to(home_); }

Network::Network(const NetworkOptions& options)
    : rest_(options.rest),
      router_(checked(options).ranks, options.seed,
              [this](const Packet& packet) {
                // A device that is full or down loses the packet, as devices do.
                [[maybe_unused]] const ssize_t written =
                    ::write(devices_[packet.to].get(), packet.bytes.data(), packet.bytes.size());
              }),
      stop_(require(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "making an event")) {
  for (const auto& statement : options.statements) router_.apply(statement);
  // A thread of its own for the way through the namespaces: the caller never leaves its own one,
  // whatever fails.
  std::exception_ptr failure;
  std::thread([&] {
    try {
      for (int rank = 0; rank < options.ranks; ++rank) {
        require(::unshare(CLONE_NEWNET), "making a network namespace");
        namespaces_.push_back(own_namespace());
        devices_.push_back(make_device(rank, options.mtu));
        for (const auto& sysctl : options.sysctls) write_sysctl(sysctl);
      }
    } catch (const Error&) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  thread_ = std::thread(&Network::serve, this);
}

Network::~Network() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::optional<std::string> Network::missing() {
  try {
    Network({.ranks = 1});
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

std::string Network::address(int rank) { return fmt::format("10.78.0.{}", rank + 1); }

void Network::apply(const std::string& statement) {
  const std::lock_guard lock(mutex_);
  router_.apply(statement);
}

void Network::serve() {
  go_before_others();
  ::prctl(PR_SET_TIMERSLACK, 1);
  const int ranks = static_cast<int>(devices_.size());
  std::vector<pollfd> watched;
  for (const auto& device : devices_) watched.push_back({device.get(), POLLIN, 0});
  watched.push_back({stop_.get(), POLLIN, 0});
  std::array<char, kLargestPacket> buffer;
  while (watched.back().revents == 0) {
    std::optional<Time> next;
    const Time began = now();
    {
      const std::lock_guard lock(mutex_);
      router_.advance(now());
      for (int from = 0; from < ranks; ++from) {
        for (int i = 0; watched[from].revents != 0 && i < kReadsInARow; ++i) {
          const ssize_t bytes = ::read(watched[from].fd, buffer.data(), buffer.size());
          if (bytes <= 0) break;
          const int to = destination(buffer.data(), bytes);
          if (to < 0 || to >= ranks) continue;
          const Time at = now();
          router_.advance(at);
          router_.send({from, to, std::string(buffer.data(), bytes)}, at);
        }
      }
      next = router_.next();
    }
    if (rest_ > Time(0) && next)
      std::this_thread::sleep_for(rest_ - std::min<Time>(rest_, now() - began));
    timespec wait{};
    if (next) {
      const Time left = std::max(Time(0), *next - now());
      wait = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    }
    ::ppoll(watched.data(), watched.size(), next ? &wait : nullptr, nullptr);
  }
}

}  // namespace heddle::links
