#include "comm/staged/staged_backend.h"

#include <algorithm>
#include <optional>

#include "tensor/device_runtime.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

Tensor pinned_like(const Tensor& tensor) {
  const std::shared_ptr<std::byte> block(
      device_runtime::allocate_pinned(std::max<std::size_t>(1, tensor.size_bytes())),
      device_runtime::release_pinned);
  return Tensor(block, 0, tensor.shape(), tensor.dtype());
}

class StagedBackend final : public CommBackend {
 public:
  StagedBackend(std::shared_ptr<CommBackend> inner, Device device)
      : CommBackend(inner->rank(), inner->group()), inner_(std::move(inner)), device_(device) {}

  void run(const Collective& call) override { inner_->run(call); }

  void start(const Collective& call, WorkState& state) override {
    if (!is_on_gpu(call.in)) return inner_->start(call, state);
    Collective staged = call;
    staged.in = fetched(call.in, call.ready, collectives_);
    staged.out = call.in.bytes() == call.out.bytes() && call.in.count() == call.out.count()
                     ? staged.in
                     : pinned_like(call.out);
    // A reduce_scatter may leave its result inside of its input, whose rest keeps its values; here
    // the two are apart.
    inner_->run(staged);
    state.set_on_wait([from = staged.out, to = call.out, in = call.in](Stream& consumer) {
      transfer(from, to, consumer);
      consumer.record().wait_on_host();  // the pinned memory goes back now
    });
  }

  /// What comes back goes to the GPU when somebody waits, and later calls may need it before.
  Background background(bool is_on_gpu) const override {
    return is_on_gpu ? Background::none : inner_->background(false);
  }

  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    inner_->send(data, peer, tag, std::move(done));
  }
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    inner_->recv(data, peer, tag, std::move(done));
  }

  void start_message(const Message& message, std::shared_ptr<WorkState> done) override {
    if (!is_on_gpu(message.data)) return inner_->start_message(message, std::move(done));
    if (message.op == CommOp::send) {
      const Tensor host = fetched(message.data, message.ready, messages_);
      return inner_->send(host, message.peer, message.tag, std::move(done));
    }
    const Tensor host = pinned_like(message.data);
    done->set_on_wait([host, to = message.data](Stream& consumer) {
      transfer(host, to, consumer);
      consumer.record().wait_on_host();
    });
    inner_->recv(host, message.peer, message.tag, std::move(done));
  }

  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override {
    auto part = inner_->split(color, key, sequence);
    return part ? through_host(std::move(part), device_) : nullptr;
  }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  std::shared_ptr<WorldFailure> failure() const override { return inner_->failure(); }

 private:
  Tensor fetched(const Tensor& tensor, const Event& ready, std::optional<Stream>& own) const {
    device_runtime::use(device_);  // the thread may be another one
    if (!own) own.emplace(1, device_);
    Stream& stream = *own;
    const Tensor host = pinned_like(tensor);
    stream.wait(ready);
    transfer(tensor, host, stream);
    stream.synchronize();
    return host;
  }

  const std::shared_ptr<CommBackend> inner_;
  const Device device_;
  std::optional<Stream> collectives_, messages_;  // which may come from two threads
};

}  // namespace

std::shared_ptr<CommBackend> through_host(std::shared_ptr<CommBackend> inner, Device device) {
  return std::make_shared<StagedBackend>(std::move(inner), device);
}

}  // namespace heddle
