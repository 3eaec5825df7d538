// Processes that share a GPU over NCCL, which scripts/test_gpu.sh starts where there is one:
//   nccl_ranks messages          messages on a GPU: both ways at once, tags in different orders
//   nccl_ranks gathers           gathers before and behind an exchange of all with all
//   nccl_ranks freeze RANK CALL  steps of training; that rank does not come to its call, but lives
//   nccl_ranks stop RANK CALL    the same with a process that is stopped
// With a fault, exits with 0 when the verdict names the rank within 5 s of the limit.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/tcp/tcp_world.h"
#include "comm/tcp_listener.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

constexpr int kRanks = 4;
constexpr double kLimit =
    15;  // making communicators keeps a process from giving signs of life for some seconds
constexpr Device kGpu{Device::Kind::cuda, 0};

/// Of all processes of a run.
struct Common {
  double fault = 0, verdict = 0;  // when
  char text[1000] = {};
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class GpuRank {
 public:
  explicit GpuRank(World& world) : all_(world.all()) { all_.connect_neighbours(); }

  Tensor filled(std::int64_t count, int value) {
    Memory host;
    const Tensor source = host.alloc({count}, DType::i32, MemoryTag::communication);
    for (auto& number : source.host<std::int32_t>()) number = value;
    const Tensor tensor = memory_.alloc({count}, DType::i32, MemoryTag::communication);
    transfer(source, tensor, stream_);
    return tensor;
  }
  void expect(const Tensor& tensor, int value) {
    Memory host;
    const Tensor found = host.alloc(tensor.shape(), DType::i32, MemoryTag::communication);
    transfer(tensor, found, stream_);
    stream_.synchronize();
    for (const auto number : found.host<std::int32_t>()) {
      if (number != value) fail(ErrorCode::internal, "found {}, expected {}", number, value);
    }
  }

  /// All send to both neighbours before anybody receives; tags are received in another order than
  /// they are sent in, and some receives are posted before all sends.
  void exchange(int round) {
    const int rank = all_.rank(), next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    const std::int64_t count = 1000 + 70000 * (round % 3);
    const auto value = [round](int from, int to, int tag) {
      return 1000 * round + 100 * from + 10 * to + tag;
    };
    std::vector<Work> sends;
    std::vector<std::pair<Tensor, Work>> receives;
    const auto receive = [&](int from, int tag) {
      const Tensor data = filled(count, -1);
      receives.emplace_back(data, all_.recv(data, from, stream_, tag));
    };
    receive(before, 2);
    receive(next, 1);
    for (const int tag : {0, 1, 2}) {
      for (const int to : {next, before}) {
        sends.push_back(all_.send(filled(count, value(rank, to, tag)), to, stream_, tag));
      }
    }
    receive(before, 0);
    receive(next, 2);
    receive(before, 1);
    receive(next, 0);
    const std::vector<std::pair<int, int>> order = {{before, 2}, {next, 1},   {before, 0},
                                                    {next, 2},   {before, 1}, {next, 0}};
    for (std::size_t i = 0; i < order.size(); ++i) {
      receives[i].second.wait(stream_);
      expect(receives[i].first, value(order[i].first, rank, order[i].second));
    }
    for (const Work& send : sends) send.wait(stream_);
  }

  /// Every rank's part in its place, also where the own one lies there already.
  void gather(std::int64_t count, bool is_in_place) {
    const Tensor all = filled(kRanks * count, -1);
    const auto part_of = [&](int rank) { return all.slice(0, rank * count, (rank + 1) * count); };
    const Tensor own = filled(count, 7 + all_.rank());
    if (is_in_place) transfer(own, part_of(all_.rank()), stream_);
    all_.all_gather(is_in_place ? part_of(all_.rank()) : own, all, stream_).wait(stream_);
    for (int rank = 0; rank < kRanks; ++rank) expect(part_of(rank), 7 + rank);
  }
  /// What a gather may do depends on whether there was an exchange. Some parts are too large for
  /// it.
  void gathers() {
    for (const bool has_exchanged : {false, true}) {
      if (has_exchanged) {
        const Tensor sent = filled(kRanks, all_.rank()), got = filled(kRanks, -1);
        const std::vector<std::int64_t> one(kRanks, 1);
        all_.all_to_all(sent, got, one, one, stream_).wait(stream_);
        for (int rank = 0; rank < kRanks; ++rank) expect(got.slice(0, rank, rank + 1), rank);
      }
      for (const std::int64_t count : {1, 70001, 3 << 20}) {
        for (const bool is_in_place : {false, true}) gather(count, is_in_place);
      }
    }
  }

  /// A sum over all, and a message around the ring; the host stays ahead of the device.
  void step() {
    const int rank = all_.rank();
    const Tensor sum = filled(1 << 16, 1), from = filled(4096, 0), to = filled(4096, rank);
    const Work received = all_.recv(from, (rank + kRanks - 1) % kRanks, stream_);
    const Work sent = all_.send(to, (rank + 1) % kRanks, stream_);
    received.wait(stream_);
    sent.wait(stream_);
    all_.all_reduce(sum, ReduceOp::sum, stream_).wait(stream_);
    expect(sum, kRanks);
    all_.check();
  }

 private:
  Communicator& all_;
  Memory memory_{kGpu};
  Stream stream_{1, kGpu};
};

void run_rank(const TcpPlace& place, const std::string& mode, int guilty, int call,
              Common& common) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process must not stay behind
  setenv("NCCL_HOSTID", ("rank-" + std::to_string(place.rank)).c_str(), 1);
  int calls = 0;
  const auto tell = [&common](const std::string& text) {
    common.verdict = now();
    std::strncpy(common.text, text.c_str(), sizeof(common.text) - 1);
  };
  run_tcp_rank(place,
               [&](World& host) {
                 World world(std::make_unique<Communicator>(over_nccl(host.all().backend(), kGpu),
                                                            host.all().shared_flight(), "world"));
                 GpuRank rank(world);
                 if (mode == "messages") {
                   for (int round = 0; round < 30; ++round) rank.exchange(round);
                   return;
                 }
                 if (mode == "gathers") return rank.gathers();
                 for (int step = 0; step < 3; ++step) rank.step();
                 if (world.rank() == guilty) {
                   world.flight().set_hook([&](const CommCall&) {
                     if (++calls < call) return true;
                     common.fault = now();
                     if (mode == "stop") std::raise(SIGSTOP);
                     std::this_thread::sleep_for(std::chrono::hours(1));
                     return true;
                   });
                 }
                 for (;;) rank.step();
               },
               {.limit = std::chrono::duration<double>(guilty < 0 ? 60 : kLimit),
                .tell = tell,
                .grace = std::chrono::duration<double>(2)});
}

int run(const std::string& mode, int guilty, int call) {
  void* const shared =
      mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& common = *new (shared) Common;
  const TcpListener listener = listen_on(0, kRanks);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        run_rank({.rank = rank,
                  .size = kRanks,
                  .port = listener.port,
                  .listening = rank == 0 ? listener.socket : -1},
                 mode, guilty, call, common);
        _exit(0);
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(static_cast<int>(error.code()));
      }
    }
    ranks.push_back(child);
  }
  int failures = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (mode == "stop" && rank == guilty) continue;
    int state = 0;
    waitpid(ranks[static_cast<std::size_t>(rank)], &state, 0);
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) ++failures;
  }
  if (guilty < 0) return failures == 0 ? 0 : 1;
  kill(ranks[static_cast<std::size_t>(guilty)], SIGKILL);
  const double after = common.verdict - common.fault;
  std::printf("verdict %.1f s after the fault, limit %.1f s, ranks ended after %.1f s: %s\n", after,
              kLimit, now() - common.fault, common.text);
  const std::string begin = "rank " + std::to_string(guilty) + " has";
  return common.fault > 0 && after > 0 && after < kLimit + 5 &&
                 std::string(common.text).rfind(begin, 0) == 0
             ? 0
             : 1;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if ((mode == "messages" || mode == "gathers") && argc == 2) return heddle::run(mode, -1, 0);
  if ((mode == "freeze" || mode == "stop") && argc == 4) {
    return heddle::run(mode, std::stoi(argv[2]), std::stoi(argv[3]));
  }
  std::fprintf(stderr, "nccl_ranks messages | gathers | freeze RANK CALL | stop RANK CALL\n");
  return 2;
}
