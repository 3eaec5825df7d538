#pragma once

#include <memory>
#include <thread>

#include "comm/comm_backend.h"
#include "comm/nccl/nccl_comm.h"

namespace heddle {

/// One of the two ends of a line: the messages from one rank to another, whatever their tags. It
/// has a communicator, a stream and a thread of its own.
///
/// NCCL matches messages by their order alone, and a message whose other side is missing is a
/// kernel that waits on the device. So the two ends agree over the host before they launch: the
/// rank with the higher number tells a tag once its tensor is ready, the other one launches its
/// oldest message for which both are, and tells its tag. Tags may come in any order on either end,
/// no kernel waits for longer than a message of the host takes, and ranks never wait in a circle
/// (docs/design/022-calls-that-a-device-has.md).
class NcclLine {
 public:
  enum class End { sender, receiver };
  /// `pair` joins the sender, as rank 0, and the receiver; `peer` is the other one in `host`.
  NcclLine(End end, const NcclLibrary& nccl, Device device, std::shared_ptr<NcclComm> pair,
           std::shared_ptr<CommBackend> host, int peer);
  /// Waits for what is under way; but not when the world has failed or an exception is on its way,
  /// since the other end may never come.
  ~NcclLine();
  NcclLine(const NcclLine&) = delete;
  NcclLine& operator=(const NcclLine&) = delete;

  /// Moves one byte. Both ends do it before the first message: NCCL sets up what it needs then.
  void warm_up();
  /// Returns at once; `done` is finished when the message was launched.
  void push(CommBackend::Message message, std::shared_ptr<WorkState> done);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace heddle
