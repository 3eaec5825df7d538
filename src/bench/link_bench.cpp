#include "bench/link_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "base/quantile.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr float kMore = 1.0F, kLast = 0.0F;
/// A step's messages come in bursts too, with other work between them. How connections share a link
/// is drawn anew in each; and what is late at a burst's end belongs to it, where a stretch of time
/// would count it for the next.
constexpr int kBursts = 5;
constexpr auto kBetweenBursts = std::chrono::milliseconds(500);

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

Tensor message_of(Memory& memory, std::int64_t bytes) {
  return memory.alloc({std::max<std::int64_t>(1, bytes / 4)}, DType::f32, MemoryTag::communication);
}

/// Two messages in turn, until time is up; the last one says so.
void send_all(Communicator& all, int to, std::int64_t bytes, double seconds) {
  Memory memory;
  Stream stream(1);
  const std::array<Tensor, 2> messages = {message_of(memory, bytes), message_of(memory, bytes)};
  std::array<std::optional<Work>, 2> under_way;
  const auto began = Clock::now();
  for (std::size_t turn = 0;; turn = 1 - turn) {
    if (under_way[turn]) under_way[turn]->wait(stream);
    const bool is_last = seconds_since(began) > seconds;
    messages[turn].data<float>()[0] = is_last ? kLast : kMore;
    under_way[turn] = all.send(messages[turn], to, stream);
    if (is_last) break;
  }
  for (const auto& work : under_way) {
    if (work) work->wait(stream);
  }
}

/// How many messages came.
std::int64_t receive_all(Communicator& all, int from, std::int64_t bytes) {
  Memory memory;
  Stream stream(1);
  const std::array<Tensor, 2> messages = {message_of(memory, bytes), message_of(memory, bytes)};
  std::array<std::optional<Work>, 2> under_way = {all.recv(messages[0], from, stream), {}};
  std::int64_t count = 0;
  for (std::size_t turn = 0;; turn = 1 - turn) {
    under_way[turn]->wait(stream);
    ++count;
    if (messages[turn].data<float>()[0] == kLast) return count;
    under_way[1 - turn] = all.recv(messages[1 - turn], from, stream);
  }
}

/// Messages around a ring for so many seconds, and until all have come.
LinkRate ring_burst(Communicator& all, int distance, double latency, std::int64_t bytes,
                    double seconds) {
  const int ranks = all.size();
  LinkRate own{.from = (all.rank() + ranks - distance) % ranks, .to = all.rank()};
  std::exception_ptr problem;
  all.barrier();
  const auto began = Clock::now();
  {
    std::jthread sending([&] {
      try {
        send_all(all, (all.rank() + distance) % ranks, bytes, seconds);
      } catch (...) {
        problem = std::current_exception();
      }
    });
    own.messages = receive_all(all, own.from, bytes);
    own.bytes_per_second = static_cast<double>(own.messages) * static_cast<double>(bytes) /
                           std::max(1e-9, seconds_since(began) - latency);
  }
  if (problem) std::rethrow_exception(problem);
  return own;
}

/// Half of the shortest of some round trips to the next rank and back, while nothing else travels.
/// All ranks do it at once, each also answering the one before it.
double measured_latency(Communicator& all, int distance) {
  constexpr int kTrips = 8, kThere = 1, kBack = 2;
  const int next = (all.rank() + distance) % all.size(),
            before = (all.rank() + all.size() - distance) % all.size();
  Memory memory;
  Stream stream(1);
  const Tensor asked = message_of(memory, 8), answer = message_of(memory, 8),
               question = message_of(memory, 8);
  double shortest = 0.0;
  for (int trip = 0; trip < kTrips; ++trip) {
    all.barrier();
    const Work answered = all.recv(answer, next, stream, kBack);
    const Work heard = all.recv(asked, before, stream, kThere);
    const auto began = Clock::now();
    const Work sent = all.send(question, next, stream, kThere);
    heard.wait(stream);
    const Work replied = all.send(asked, before, stream, kBack);
    answered.wait(stream);
    const double seconds = seconds_since(began);
    sent.wait(stream);
    replied.wait(stream);
    shortest = trip == 0 ? seconds : std::min(shortest, seconds);
  }
  return shortest / 2;
}

/// Sums over all ranks one after another, some of them under way; in the order in which they were
/// begun.
class Sums {
 public:
  /// `bytes`: that a rank sends to each other, twice.
  Sums(Communicator& all, std::int64_t bytes) : all_(all) {
    for (Turn& turn : turns_) {
      turn.values = message_of(memory_, all.size() * bytes);
      std::ranges::fill(turn.values.host<float>(), 0.0F);
    }
  }
  static constexpr std::size_t kUnderWay = 4;

  /// The word of rank 0 reaches all ranks with it.
  void begin(float word) {
    Turn& turn = turns_[begun_++ % kUnderWay];
    turn.values.data<float>()[0] = all_.rank() == 0 ? word : 0.0F;
    turn.work = all_.all_reduce(turn.values, ReduceOp::sum, stream_);
  }
  float end_oldest() {
    Turn& turn = turns_[ended_++ % kUnderWay];
    turn.work.wait(stream_);
    return turn.values.data<float>()[0];
  }
  bool has_any() const { return ended_ < begun_; }

 private:
  struct Turn {
    Tensor values;
    Work work;
  };
  Communicator& all_;
  Memory memory_;
  Stream stream_{1};
  std::array<Turn, kUnderWay> turns_;
  std::size_t begun_ = 0, ended_ = 0;
};

}  // namespace

double bench_exchange(World& world, const LinkBenchOptions& options) {
  Communicator& all = world.all();
  all.run_in_background(true);
  Sums sums(all, options.bytes);
  const auto burst = [&](double seconds) {
    all.barrier();
    const auto began = Clock::now();
    for (std::size_t i = 0; i < Sums::kUnderWay; ++i) sums.begin(kMore);
    double count = 0.0;
    while (sums.end_oldest() == kMore) {
      ++count;
      sums.begin(seconds_since(began) >= seconds ? kLast : kMore);
    }
    for (++count; sums.has_any(); ++count) sums.end_oldest();
    const double rate =
        2 * count * static_cast<double>(options.bytes) * (all.size() - 1) / seconds_since(began);
    return -all.combine(-rate, ReduceOp::max);
  };
  burst(options.warm_up);
  std::vector<double> rates;
  for (int i = 0; i < kBursts; ++i) {
    std::this_thread::sleep_for(kBetweenBursts);
    rates.push_back(burst(options.seconds / kBursts));
  }
  all.run_in_background(false);
  return quantile(rates, 0.5);
}

std::vector<LinkRate> bench_links(World& world, const LinkBenchOptions& options, int distance) {
  Communicator& all = world.all();
  const int ranks = all.size();
  const double latency = measured_latency(all, distance);
  ring_burst(all, distance, latency, options.bytes, options.warm_up);
  LinkRate own;
  std::vector<double> bursts;
  for (int i = 0; i < kBursts; ++i) {
    std::this_thread::sleep_for(kBetweenBursts);
    const LinkRate burst =
        ring_burst(all, distance, latency, options.bytes, options.seconds / kBursts);
    own.messages += burst.messages;
    bursts.push_back(burst.bytes_per_second);
  }
  own.bytes_per_second = quantile(bursts, 0.5);
  Memory memory;
  Stream stream(1);
  constexpr std::int64_t kNumbers = 3;
  const Tensor mine = memory.alloc({kNumbers}, DType::f64, MemoryTag::communication);
  const Tensor everybody = memory.alloc({kNumbers * ranks}, DType::f64, MemoryTag::communication);
  mine.data<double>()[0] = own.bytes_per_second;
  mine.data<double>()[1] = static_cast<double>(own.messages);
  mine.data<double>()[2] = latency;
  all.all_gather(mine, everybody, stream).wait(stream);
  const auto of = [&](int rank) { return everybody.data<double>() + kNumbers * rank; };
  std::vector<LinkRate> rates;
  for (int to = 0; to < ranks; ++to) {
    const int from = (to + ranks - distance) % ranks;
    rates.push_back({.from = from,
                     .to = to,
                     .bytes_per_second = of(to)[0],
                     .latency_seconds = of(from)[2],
                     .messages = static_cast<std::int64_t>(of(to)[1])});
  }
  return rates;
}

}  // namespace heddle
