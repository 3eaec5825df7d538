// What background saves cost, of llama-110m on ranks that are threads:
//
//     save_bench memory FOLDER    what a save holds beside the model, on eight ranks
//     save_bench disks FOLDER     time to durable when every rank has a slow disk of its own
//     save_bench steps FOLDER [TOKENS [PAIRS]]    a step during a save against one without, in
//     pairs;
//                                 two ranks with a sequence of TOKENS (1024) each
//
// FOLDER is where checkpoints go (for `disks` best in memory: the slow disks are simulated). Prints
// tables.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "base/strings.h"
#include "comm/threads/thread_world.h"
#include "engine/train_step.h"
#include "train/model_setup.h"
#include "train/saving.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The real file system behind a disk that takes so many bytes a second.
class SlowDisk : public FileSystem {
 public:
  explicit SlowDisk(double bytes_per_second) : rate_(bytes_per_second) {}

  std::unique_ptr<WritableFile> create(const fs::path& path) override { return real_.create(path); }
  std::unique_ptr<WritableFile> open(const fs::path& path) override {
    return std::make_unique<File>(real_.open(path), *this);
  }
  void create_directories(const fs::path& path) override { real_.create_directories(path); }
  void rename(const fs::path& from, const fs::path& to) override { real_.rename(from, to); }
  void remove_all(const fs::path& path) override { real_.remove_all(path); }
  void sync_directory(const fs::path& path) override { real_.sync_directory(path); }
  std::uint64_t free_bytes(const fs::path& path) override { return real_.free_bytes(path); }

 private:
  struct File : WritableFile {
    File(std::unique_ptr<WritableFile> real, SlowDisk& of) : file(std::move(real)), disk(of) {}
    void append(std::span<const std::byte> bytes) override { file->append(bytes); }
    void write_at(std::uint64_t at, std::span<const std::byte> bytes) override {
      disk.take(bytes.size());
      file->write_at(at, bytes);
    }
    void sync() override { file->sync(); }
    void close() override { file->close(); }
    std::unique_ptr<WritableFile> file;
    SlowDisk& disk;
  };

  /// Waits until the disk has done all it was given.
  void take(std::size_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> lasts(static_cast<double>(bytes) / rate_);
    free_at_ = std::max(free_at_, now) +
               std::chrono::duration_cast<std::chrono::steady_clock::duration>(lasts);
    std::this_thread::sleep_until(free_at_);
  }

  FileSystem& real_ = real_file_system();
  const double rate_;
  std::chrono::steady_clock::time_point free_at_;
};

/// One rank that trains on random tokens.
class Rank {
 public:
  Rank(const ParallelRequest& request, std::int64_t seq_len, World& world)
      : spec_(named_model("llama-110m")),
        seq_len_(seq_len),
        plan_(make_plan(spec_, request, world.size(), seq_len)),
        mesh_(plan_.mesh, world.all()),
        model_(spec_, {.positions = seq_len}, plan_, mesh_, ParamStore::Purpose::training, memory_),
        step_(model_, *optimizer_, stream_, memory_) {
    initialize(model_.store(), 1, stream_);
  }

  Model& model() { return model_; }
  TrainStep& step() { return step_; }
  void train() {
    ++number_;
    const std::vector<MicroBatch> batches = {
        plain_batch(ids(2 * number_), ids(2 * number_ + 1), 0, memory_)};
    step_.run(batches, {.lr = 1e-4, .step = number_}, 1.0);
  }

 private:
  Tensor ids(std::int64_t key) {
    const Tensor made = memory_.alloc({1, seq_len_}, DType::i32, MemoryTag::data);
    std::uint64_t i = 0;
    for (auto& id : made.host<std::int32_t>()) {
      const auto vocab = static_cast<std::uint64_t>(spec_.vocab);
      id = static_cast<std::int32_t>(random_u64(static_cast<std::uint64_t>(key), i++) % vocab);
    }
    return made;
  }

  const ModelSpec spec_;
  const std::int64_t seq_len_;
  std::int64_t number_ = 0;
  Memory memory_;
  Stream stream_{1};
  ParallelPlan plan_;
  Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_ = make_optimizer({}, model_.store());
  TrainStep step_;
};

/// The largest resident size of the process since the last call, in bytes.
std::uint64_t take_peak() {
  std::uint64_t kib = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") status >> kib;
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kib * 1024;
}

std::string mib(double bytes) { return fmt::format("{:.0f}", bytes / (1 << 20)); }

void measure_memory(const fs::path& folder) {
  fmt::print(
      "| mesh | a rank's state, MiB | ledger of the fullest rank, MiB | resident beside a step, "
      "MiB a rank |\n|---|---|---|---|\n");
  struct Case {
    const char* name;
    ParallelRequest request;
  };
  for (const Case& one : {Case{"dp 2, tp 2, pp 2", {.tp = 2, .pp = 2}},
                          Case{"dp 8, ZeRO 1", {.zero = 1}}, Case{"dp 8, ZeRO 0", {.zero = 0}}}) {
    run_ranks(8, [&](World& world) {
      Rank rank(one.request, 64, world);
      Saving saving({.root = folder, .identity = {}}, rank.model(), world);
      rank.step().before_update([&] { saving.before_update(); });
      double state = 0;
      for (const auto& [kind, pieces] : states_of(rank.model().store())) {
        for (const ParamPiece& piece : pieces)
          state += static_cast<double>(piece.data.size_bytes());
      }
      rank.train();
      const auto peak = [&](const auto& work) {
        world.all().barrier();
        if (world.rank() == 0) take_peak();
        world.all().barrier();
        work();
        world.all().barrier();
        return static_cast<double>(world.rank() == 0 ? take_peak() : 0);
      };
      const double without = peak([&] { rank.train(); });
      const double with = peak([&] {
        saving.begin({.step = 1});
        rank.train();
        saving.finish();
      });
      state = world.all().combine(state, ReduceOp::max);
      const double ledger =
          world.all().combine(static_cast<double>(saving.peak_bytes()), ReduceOp::max);
      if (world.rank() > 0) return;
      fmt::print("| {} | {} | {} | {} |\n", one.name, mib(state), mib(ledger),
                 mib((with - without) / 8));
      std::fflush(stdout);
    });
    fs::remove_all(folder);
  }
}

void measure_disks(const fs::path& folder) {
  constexpr double kRate = 50e6;
  constexpr int kRounds = 3;
  fmt::print(
      "| ranks (dp, ZeRO 1) | seconds to durable at 50 MB/s a disk, median of {} | times faster "
      "than one |\n|---|---|---|\n",
      kRounds);
  double one = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    run_ranks(ranks, [&](World& world) {
      Rank rank({.zero = 1}, 64, world);
      std::vector<double> seconds;
      for (int round = 0; round < kRounds; ++round) {
        SlowDisk disk(kRate);
        Saving saving({.root = folder, .identity = {}, .files = &disk}, rank.model(), world);
        world.all().barrier();
        const Stopwatch watch;
        saving.begin({.step = round + 1});
        saving.finish();
        seconds.push_back(watch.seconds());
      }
      if (world.rank() > 0) return;
      const double median = quantile(seconds, 0.5);
      if (ranks == 1) one = median;
      fmt::print("| {} | {:.2f} | {:.2f} |\n", ranks, median, one / median);
      std::fflush(stdout);
    });
    fs::remove_all(folder);
  }
}

void measure_steps(const fs::path& folder, std::int64_t tokens, int pairs) {
  run_ranks(2, [&](World& world) {
    Rank rank({.zero = 1}, tokens, world);
    Saving saving({.root = folder, .identity = {}}, rank.model(), world);
    rank.step().before_update([&] { saving.before_update(); });
    rank.train();
    std::vector<double> without, with, ratios;
    const auto timed = [&](bool saves, int pair) {
      world.all().barrier();
      const Stopwatch watch;
      if (saves) saving.begin({.step = pair + 1});
      rank.train();
      saving.poll();
      const double seconds = watch.seconds();
      saving.finish();
      return world.all().combine(seconds, ReduceOp::max);
    };
    for (int pair = 0; pair < pairs; ++pair) {  // which comes first changes from pair to pair
      const bool saves_first = pair % 2 == 0;
      double plain = timed(saves_first, pair), saved = timed(!saves_first, pair);
      if (saves_first) std::swap(plain, saved);
      without.push_back(plain);
      with.push_back(saved);
      ratios.push_back(saved / plain);
      if (world.rank() == 0) fmt::print(stderr, "{:.2f} s, saving {:.2f} s\n", plain, saved);
    }
    if (world.rank() > 0) return;
    fmt::print(
        "| ranks | tokens a step | pairs | step, s | step with a save, s | ratios: least, median, "
        "largest |\n|---|---|---|---|---|---|\n");
    fmt::print("| 2 (dp, ZeRO 1) | {} | {} | {:.2f} | {:.2f} | {:.3f}, {:.3f}, {:.3f} |\n",
               2 * tokens, pairs, quantile(without, 0.5), quantile(with, 0.5),
               quantile(ratios, 0.0), quantile(ratios, 0.5), quantile(ratios, 1.0));
  });
  fs::remove_all(folder);
}

int main_of(int argc, char** argv) {
  const std::string what = argc >= 3 ? argv[1] : "";
  const fs::path folder =
      fs::path(argc >= 3 ? argv[2] : "") / fmt::format("save-bench-{}", ::getpid());
  if (what == "memory") return measure_memory(folder), 0;
  if (what == "disks") return measure_disks(folder), 0;
  if (what == "steps") {
    measure_steps(folder, argc > 3 ? std::stoll(argv[3]) : 1024,
                  argc > 4 ? std::stoi(argv[4]) : 11);
    return 0;
  }
  fmt::print(stderr, "usage: save_bench memory|disks|steps FOLDER [TOKENS [PAIRS]]\n");
  return 2;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::main_of(argc, argv); }
