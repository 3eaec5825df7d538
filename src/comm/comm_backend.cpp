#include "comm/comm_backend.h"

#include "base/check.h"

namespace heddle {
namespace {

void require_host(const Tensor& tensor) {
  HEDDLE_CHECK(!tensor.defined() || tensor.device().kind == Device::Kind::cpu,
               "a tensor on a GPU is given to ranks that are joined on the host only");
}

}  // namespace

void CommBackend::start(const Collective& call, WorkState&) {
  require_host(call.in);
  run(call);
}

Stream& CommBackend::stream() { HEDDLE_CHECK(false, "these ranks have no stream of their own"); }

void CommBackend::start_message(const Message& message, std::shared_ptr<WorkState> done) {
  require_host(message.data);
  if (message.op == CommOp::send) {
    send(message.data, message.peer, message.tag, std::move(done));
  } else {
    recv(message.data, message.peer, message.tag, std::move(done));
  }
}

}  // namespace heddle
