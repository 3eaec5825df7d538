#include "comm/nccl/nccl_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "comm/nccl/nccl_comm.h"
#include "comm/nccl/nccl_line.h"
#include "comm/staged/staged_backend.h"
#include "comm/world_failure.h"
#include "tensor/device_runtime.h"

namespace heddle {
namespace {

ncclDataType_t nccl_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
    case DType::u32: return ncclUint32;
    case DType::u16: break;
  }
  HEDDLE_CHECK(false, "{} over NCCL", name_of(dtype));
  return ncclUint8;
}

ncclRedOp_t nccl_op_of(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

/// A message takes so many of a GPU's processors at most.
constexpr int kMessageBlocks = 8;

std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.count()); }

class NcclBackend final : public CommBackend {
 public:
  NcclBackend(std::shared_ptr<CommBackend> host, Device device, const NcclLibrary& nccl,
              MadeNcclComm made)
      : CommBackend(host->rank(), host->group()),
        device_(device),
        nccl_(nccl),
        maker_(std::move(made.maker)),
        comm_(std::move(made.comm)),
        host_(through_host(std::move(host), device)),
        stream_(1, device) {}
  /// NCCL's memory is used until its work is done.
  ~NcclBackend() override {
    try {
      stream_.synchronize();
    } catch (const Error&) {
      // The failure was told where it came to light.
    }
  }

  void run(const Collective& call) override { host_->run(call); }

  void start(const Collective& call, WorkState& state) override {
    if (!is_on_gpu(call.in)) return host_->start(call, state);
    if (const auto world = failure()) world->check();
    device_runtime::use(device_);  // the thread may be another one
    stream_.wait(call.ready);
    marks_.begin();
    comm_->with([&](ncclComm_t comm) { enqueue(call, comm); });
    state.hand_over(marks_.end());
    const Event end = stream_.record();
    state.set_on_wait(
        [end, in = call.in, out = call.out](Stream& consumer) { consumer.wait(end); });
  }

  Background background(bool is_on_gpu) const override {
    return is_on_gpu ? Background::own_stream : host_->background(false);
  }
  Stream& stream() override { return stream_; }

  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    host_->send(data, peer, tag, std::move(done));
  }
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    host_->recv(data, peer, tag, std::move(done));
  }
  void start_message(const Message& message, std::shared_ptr<WorkState> done) override {
    if (is_in_group_ && is_on_gpu(message.data)) {
      group_.push_back({message, std::move(done)});
      return;
    }
    const auto line = lines_.find({message.op, message.peer});
    if (!is_on_gpu(message.data) || line == lines_.end()) {
      return host_->start_message(message, std::move(done));
    }
    line->second->push(message, std::move(done));
  }

  void begin_group() override { is_in_group_ = has_groups_; }
  void end_group() override {
    is_in_group_ = false;
    const std::vector<Grouped> messages = std::exchange(group_, {});
    if (messages.empty()) return;
    if (const auto world = failure()) world->check();
    device_runtime::use(device_);
    for (const Grouped& one : messages) stream_.wait(one.message.ready);
    marks_.begin();
    comm_->with([&](ncclComm_t comm) { enqueue(messages, comm); });
    const DeviceProgress progress = marks_.end();
    const Event end = stream_.record();
    for (const auto& [message, done] : messages) {
      done->hand_over(progress);
      done->set_on_wait([end, data = message.data](Stream& consumer) { consumer.wait(end); });
      done->finish();
    }
  }
  bool can_connect_groups() const override { return size() > 1 && !has_groups_; }
  /// A byte between each two, since NCCL sets up connections at their first use.
  void connect_groups() override {
    device_runtime::use(device_);
    Memory memory(device_);
    const Tensor bytes = memory.alloc({2 * size()}, DType::u8, MemoryTag::communication);
    std::vector<Grouped> messages;
    for (int distance = 1; distance < size(); ++distance) {
      const auto add = [&](CommOp op, int peer) {
        const std::int64_t at = op == CommOp::send ? peer : size() + peer;
        messages.push_back({{.op = op, .data = bytes.slice(0, at, at + 1), .peer = peer}, nullptr});
      };
      add(CommOp::send, (rank() + distance) % size());
      add(CommOp::recv, (rank() + size() - distance) % size());
    }
    comm_->with([&](ncclComm_t comm) { enqueue(messages, comm); });
    stream_.synchronize();
    has_groups_ = true;
  }

  bool can_connect_neighbours() const override { return size() > 1 && lines_.empty(); }
  /// Neighbours are paired in rounds, in each of which a rank has one partner at most; each pair
  /// has a line in either direction.
  void connect_neighbours() override {
    device_runtime::use(device_);
    for (const int partner : partners()) {
      for (const int sender : {std::min(rank(), partner), std::max(rank(), partner)}) {
        open_line(partner, sender);
      }
    }
  }

  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override {
    auto part = host_->split(color, key, sequence);
    ncclComm_t comm = nullptr;
    comm_->with([&](ncclComm_t all) {
      HEDDLE_NCCL(nccl_.split(all, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &comm, nullptr));
    });
    if (!part) return nullptr;
    return std::make_shared<NcclBackend>(std::move(part), device_, nccl_,
                                         MadeNcclComm{.comm = watched(comm)});
  }
  void abort(std::string_view why) noexcept override { host_->abort(why); }
  std::shared_ptr<WorldFailure> failure() const override { return host_->failure(); }

 private:
  /// By round; -1: none in this one. In a ring of an odd number of ranks the last pair takes a
  /// round of its own.
  std::vector<int> partners() const {
    const int ranks = size();
    const int rounds = ranks == 2 ? 1 : 2 + ranks % 2;
    std::vector<int> partners(static_cast<std::size_t>(rounds), -1);
    for (int left = 0; left < (ranks == 2 ? 1 : ranks); ++left) {
      const int right = (left + 1) % ranks;
      const int round = left == ranks - 1 && ranks % 2 == 1 ? 2 : left % 2;
      if (left == rank()) partners[static_cast<std::size_t>(round)] = right;
      if (right == rank()) partners[static_cast<std::size_t>(round)] = left;
    }
    return partners;
  }

  std::shared_ptr<NcclComm> watched(ncclComm_t comm) const {
    return own_nccl_comm(nccl_, comm, *host_);
  }

  /// Collective; a rank without a partner only takes part in the split.
  void open_line(int partner, int sender) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = kMessageBlocks;
    const int color = partner < 0 ? NCCL_SPLIT_NOCOLOR : std::min(rank(), partner);
    ncclComm_t pair = nullptr;
    comm_->with([&](ncclComm_t all) {
      HEDDLE_NCCL(nccl_.split(all, color, sender == rank() ? 0 : 1, &pair, &config));
    });
    if (partner < 0) return;
    auto comm = watched(pair);
    const bool sends = sender == rank();
    auto line = std::make_unique<NcclLine>(sends ? NcclLine::End::sender : NcclLine::End::receiver,
                                           nccl_, device_, std::move(comm), host_, partner);
    line->warm_up();
    lines_[{sends ? CommOp::send : CommOp::recv, partner}] = std::move(line);
  }

  struct Grouped {
    Message message;
    std::shared_ptr<WorkState> done;
  };
  void enqueue(const std::vector<Grouped>& messages, ncclComm_t comm) {
    auto* const stream = static_cast<cudaStream_t>(stream_.native());
    in_nccl_group(nccl_, [&] {
      for (const auto& [message, done] : messages) {
        const Tensor& data = message.data;
        const ncclDataType_t type = nccl_type_of(data.dtype());
        if (message.op == CommOp::send) {
          HEDDLE_NCCL(nccl_.send(data.bytes(), count_of(data), type, message.peer, comm, stream));
        } else {
          HEDDLE_NCCL(nccl_.recv(data.bytes(), count_of(data), type, message.peer, comm, stream));
        }
      }
    });
  }

  void enqueue(const Collective& call, ncclComm_t comm) {
    auto* const stream = static_cast<cudaStream_t>(stream_.native());
    const void* const in = call.in.bytes();
    void* const out = call.out.bytes();
    const ncclDataType_t type = nccl_type_of(call.in.dtype());
    switch (call.op) {
      case CommOp::all_reduce:
        HEDDLE_NCCL(nccl_.all_reduce(in, out, count_of(call.in), type, nccl_op_of(call.reduce),
                                     comm, stream));
        return;
      case CommOp::all_gather:
        if (goes_straight(call)) return gather_straight(call, comm, stream);
        HEDDLE_NCCL(nccl_.all_gather(in, out, count_of(call.in), type, comm, stream));
        return;
      case CommOp::reduce_scatter:
        HEDDLE_NCCL(nccl_.reduce_scatter(in, out, count_of(call.out), type, nccl_op_of(call.reduce),
                                         comm, stream));
        return;
      case CommOp::broadcast:
        HEDDLE_NCCL(nccl_.broadcast(in, out, count_of(call.in), type, call.root, comm, stream));
        return;
      case CommOp::all_to_all: return exchange_rows(call, comm, stream);
      default: HEDDLE_CHECK(false, "{} over NCCL", name_of(call.op));
    }
  }

  /// NCCL gathers around a ring of N ranks: what comes from the farthest waits for N - 1 ranks to
  /// pass it on. Where an exchange of all with all has connected every two ranks, small parts go
  /// straight to everybody. All ranks decide alike, since they make the same calls.
  bool goes_straight(const Collective& call) const {
    constexpr std::size_t kMostBytes = std::size_t{8} << 20;
    return has_exchanged_ && call.in.size_bytes() <= kMostBytes;
  }

  void gather_straight(const Collective& call, ncclComm_t comm, cudaStream_t stream) {
    const ncclDataType_t type = nccl_type_of(call.in.dtype());
    const std::size_t count = count_of(call.in), bytes = call.in.size_bytes();
    const auto part_of = [&](int rank) {
      return call.out.bytes() + static_cast<std::size_t>(rank) * bytes;
    };
    in_nccl_group(nccl_, [&] {
      for (int distance = 0; distance < size(); ++distance) {
        const int next = (rank() + distance) % size(), last = (rank() + size() - distance) % size();
        if (distance == 0 && call.in.bytes() == part_of(rank())) continue;
        HEDDLE_NCCL(nccl_.send(call.in.bytes(), count, type, next, comm, stream));
        HEDDLE_NCCL(nccl_.recv(part_of(last), count, type, last, comm, stream));
      }
    });
  }

  void exchange_rows(const Collective& call, ncclComm_t comm, cudaStream_t stream) {
    has_exchanged_ = true;
    const auto row_of = [](const Tensor& rows) {
      return rows.size(0) == 0 ? std::int64_t{0} : rows.count() / rows.size(0);
    };
    const auto row = static_cast<std::size_t>(std::max(row_of(call.in), row_of(call.out)));
    const std::size_t element = size_of(call.in.dtype());
    const ncclDataType_t type = nccl_type_of(call.in.dtype());
    const std::byte* from = call.in.bytes();
    std::byte* to = call.out.bytes();
    in_nccl_group(nccl_, [&] {
      for (int peer = 0; peer < size(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        const std::size_t sent = static_cast<std::size_t>(call.send_rows[at]) * row;
        const std::size_t received = static_cast<std::size_t>(call.recv_rows[at]) * row;
        if (sent > 0) HEDDLE_NCCL(nccl_.send(from, sent, type, peer, comm, stream));
        if (received > 0) HEDDLE_NCCL(nccl_.recv(to, received, type, peer, comm, stream));
        from += sent * element;
        to += received * element;
      }
    });
  }

  const Device device_;
  const NcclLibrary& nccl_;
  const std::shared_ptr<NcclComm> maker_;  // of the world's group
  const std::shared_ptr<NcclComm> comm_;
  const std::shared_ptr<CommBackend> host_;
  Stream stream_;
  StreamMarks marks_{stream_};
  std::map<std::pair<CommOp, int>, std::unique_ptr<NcclLine>> lines_;  // by peer
  bool has_groups_ = false, is_in_group_ = false;
  bool has_exchanged_ = false;  // whether every two ranks have been connected by an all_to_all
  std::vector<Grouped> group_;  // of the group under way
};

}  // namespace

bool has_nccl() { return nccl_library() != nullptr; }

std::shared_ptr<CommBackend> over_nccl(std::shared_ptr<CommBackend> host, Device device) {
  const NcclLibrary* const nccl = nccl_library();
  if (nccl == nullptr) {
    throw Error(ErrorCode::resources, "NCCL (libnccl.so.2) was not found",
                "install it or put its folder on LD_LIBRARY_PATH");
  }
  device_runtime::use(device);
  MadeNcclComm made = make_nccl_comm(*nccl, *host);
  return std::make_shared<NcclBackend>(std::move(host), device, *nccl, std::move(made));
}

/// With a communicator of this rank alone NCCL loads its kernels.
void prepare_nccl(Device device) {
  const NcclLibrary* const nccl = nccl_library();
  if (nccl == nullptr) return;
  device_runtime::use(device);
  ncclUniqueId id{};
  HEDDLE_NCCL(nccl->get_unique_id(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t alone = nullptr;
  HEDDLE_NCCL(nccl->init_rank(&alone, 1, id, 0, &config));
  nccl->destroy(alone);
}

}  // namespace heddle
