#include "comm/nccl/nccl_line.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "tensor/device_runtime.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// Of what the ends say to each other over the host: beside the tags that callers use, and within
/// what MPI allows. A pair of ranks has a line in each direction.
constexpr int kTagsUp = 1 << 14, kTagsDown = kTagsUp + 1;

/// Looks at the device follow each other at once for as long as the gap between two kernels usually
/// is; then the thread sleeps in between, since cores are wanted elsewhere.
constexpr std::chrono::microseconds kPatience{50}, kNap{20};

/// A number for a message over the host.
Tensor host_number(std::int32_t value = 0) {
  const std::shared_ptr<std::byte> block(new std::byte[sizeof(value)],
                                         std::default_delete<std::byte[]>());
  const Tensor number(block, 0, {1}, DType::i32);
  number.host<std::int32_t>()[0] = value;
  return number;
}

}  // namespace

struct NcclLine::Shared : std::enable_shared_from_this<Shared> {
  struct Entry {
    CommBackend::Message message;
    std::shared_ptr<WorkState> done;
    bool was_told = false;  // to the end that leads
  };

  Shared(End end, const NcclLibrary& nccl, Device device, std::shared_ptr<NcclComm> pair,
         std::shared_ptr<CommBackend> host, int peer)
      : end(end),
        nccl(nccl),
        device(device),
        pair(std::move(pair)),
        host(std::move(host)),
        peer(peer),
        leads(this->host->rank() < peer),
        host_tag((end == End::sender) == leads ? kTagsUp : kTagsDown),
        stream(1, device) {}

  const End end;
  const NcclLibrary& nccl;
  const Device device;
  const std::shared_ptr<NcclComm> pair;
  const std::shared_ptr<CommBackend> host;
  const int peer;
  const bool leads;  // launches first
  const int host_tag;
  Stream stream;
  StreamMarks marks{stream};

  std::mutex mutex;
  std::condition_variable changed;
  std::list<Entry> waiting;    // oldest first
  std::deque<int> named;       // tags that the other end has named and this one has not launched
  std::exception_ptr failure;  // nothing is launched any more
  bool is_closing = false;

  /// Enqueues a message, to the moment from which the other end has to do its part.
  void launch(void* data, std::size_t bytes) {
    const device_runtime::LaunchLock lock;
    auto* const queue = static_cast<cudaStream_t>(stream.native());
    marks.begin();
    pair->with([&](ncclComm_t comm) {
      if (end == End::sender) {
        HEDDLE_NCCL(nccl.send(data, bytes, ncclUint8, 1, comm, queue));
      } else {
        HEDDLE_NCCL(nccl.recv(data, bytes, ncclUint8, 0, comm, queue));
      }
    });
  }

  /// The other end will name a tag for every message.
  void expect_tag() {
    const Tensor tag = host_number();
    const auto on_end = [line = shared_from_this(), tag](const std::exception_ptr& problem) {
      if (problem) return line->fail_with(problem);
      {
        const std::lock_guard lock(line->mutex);
        line->named.push_back(tag.host<std::int32_t>()[0]);
      }
      line->changed.notify_all();
    };
    host->recv(tag, peer, host_tag, std::make_shared<WorkState>(on_end));
  }

  void tell_tag(int tag) {
    host->send(host_number(tag), peer, host_tag,
               std::make_shared<WorkState>([](const std::exception_ptr&) {}));
  }

  /// Takes a message that both ends have: the one that leads its oldest, the other one what that
  /// has launched. Call it with the lock.
  std::optional<Entry> take() {
    const auto candidates = leads ? named.end() : std::min(named.begin() + 1, named.end());
    for (auto entry = waiting.begin(); entry != waiting.end(); ++entry) {
      const auto tag = std::find(named.begin(), candidates, entry->message.tag);
      if (tag == candidates || !entry->message.ready.is_reached()) continue;
      named.erase(tag);
      Entry taken = std::move(*entry);
      waiting.erase(entry);
      return taken;
    }
    return std::nullopt;
  }

  /// The tag of the next message that is ready here, for the end that leads. Call it with the lock.
  std::optional<int> next_ready() {
    if (leads) return std::nullopt;
    const auto found =
        std::ranges::find_if(waiting, [](const Entry& entry) { return !entry.was_told; });
    if (found == waiting.end() || !found->message.ready.is_reached()) return std::nullopt;
    found->was_told = true;
    return found->message.tag;
  }

  /// Whether only the device holds a message up. Call it with the lock.
  bool waits_for_device() const {
    return std::ranges::any_of(waiting, [this](const Entry& entry) {
      if (!leads) return !entry.was_told;
      return std::ranges::find(named, entry.message.tag) != named.end();
    });
  }

  void carry_out(Entry entry) {
    std::exception_ptr problem;
    try {
      launch(entry.message.data.bytes(), entry.message.data.size_bytes());
      if (leads) tell_tag(entry.message.tag);
      entry.done->hand_over(marks.end());
      const Event after = stream.record();
      entry.done->set_on_wait(
          [after, held = entry.message.data](Stream& consumer) { consumer.wait(after); });
    } catch (...) {
      problem = std::current_exception();
    }
    entry.message = {};  // who waits may count on the tensor being released
    entry.done->finish(problem);
  }

  /// One thing that can be done now, without the lock; false when there is none.
  bool advance(std::unique_lock<std::mutex>& lock) {
    if (const auto tag = next_ready()) {
      lock.unlock();
      tell_tag(*tag);
      lock.lock();
      return true;
    }
    if (auto entry = take()) {
      lock.unlock();
      carry_out(std::move(*entry));
      lock.lock();
      return true;
    }
    return false;
  }

  void work() {
    device_runtime::use(device);
    std::unique_lock lock(mutex);
    for (auto idle_since = Clock::now(); !failure;) {
      if (advance(lock)) {
        idle_since = Clock::now();
      } else if (waits_for_device()) {
        lock.unlock();
        if (Clock::now() - idle_since < kPatience) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(kNap);
        }
        lock.lock();
      } else if (is_closing && waiting.empty()) {
        return;
      } else {
        changed.wait(lock);
        idle_since = Clock::now();
      }
    }
  }

  void run() {
    try {
      work();
    } catch (...) {
      fail_with(std::current_exception());
    }
    std::list<Entry> left;
    std::exception_ptr problem;
    {
      const std::lock_guard lock(mutex);
      left.swap(waiting);
      problem = failure;
    }
    for (Entry& entry : left) {
      entry.message = {};
      entry.done->finish(problem);
    }
  }

  void fail_with(const std::exception_ptr& problem) {
    {
      const std::lock_guard lock(mutex);
      if (!failure) failure = problem;
    }
    changed.notify_all();
  }
};

NcclLine::NcclLine(End end, const NcclLibrary& nccl, Device device, std::shared_ptr<NcclComm> pair,
                   std::shared_ptr<CommBackend> host, int peer)
    : shared_(std::make_shared<Shared>(end, nccl, device, std::move(pair), std::move(host), peer)),
      thread_([shared = shared_] { shared->run(); }) {}

NcclLine::~NcclLine() {
  const auto world = shared_->host->failure();
  const bool is_failing = (world && world->has_failed()) || std::uncaught_exceptions() > 0;
  if (is_failing) {
    shared_->fail_with(std::make_exception_ptr(Error(ErrorCode::peer, "the run is failing")));
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_closing = true;
  }
  shared_->changed.notify_all();
  thread_.join();
  if (is_failing) return;
  try {
    shared_->stream.synchronize();  // NCCL's memory is used until its work is done
  } catch (const Error&) {
    // The failure was told where it came to light.
  }
}

void NcclLine::warm_up() {
  Memory memory(shared_->device);
  const Tensor byte = memory.alloc({1}, DType::u8, MemoryTag::communication);
  shared_->launch(byte.bytes(), 1);
  shared_->marks.end();
  shared_->stream.synchronize();
}

void NcclLine::push(CommBackend::Message message, std::shared_ptr<WorkState> done) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failure) std::rethrow_exception(shared_->failure);
    shared_->waiting.push_back({std::move(message), std::move(done)});
  }
  shared_->expect_tag();
  shared_->changed.notify_all();
}

}  // namespace heddle
