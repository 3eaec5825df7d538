#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "parallel/compression.h"
#include "parallel/exchange/bad_notes.h"
#include "tensor/memory.h"

namespace heddle {

/// Messages between stages as a codec's bytes. Of a lossless codec each comes behind a message that
/// says its size.
class CodedMessages {
 public:
  /// `memory` outlives it. `compression` has a codec for `pipeline`.
  CodedMessages(const Compression& compression, Memory& memory, std::shared_ptr<BadNotes> notes);

  /// Whether a message of so many bytes goes this way: the same at both ends.
  bool takes(std::int64_t payload_bytes) const { return payload_bytes >= min_bytes_; }
  bool sends_sizes() const { return codec_->is_lossless(); }
  /// At most, where sizes are sent.
  std::int64_t encoded_bytes(std::int64_t values) const {
    return static_cast<std::int64_t>(codec_->encoded_bytes(values));
  }

  /// A message under way, with what it uses.
  struct Message {
    std::vector<Work> works;
    Tensor bytes, size;

    void wait(Stream& stream) const {
      for (const Work& work : works) work.wait(stream);
    }
  };
  /// The other end of a message.
  struct Line {
    Communicator& pipeline;
    int peer, tag;
  };
  /// `data` may change once this returns.
  Message send(const Tensor& data, const Line& line, Stream& stream) const;
  /// Gives the message of a tensor like this a place.
  Message post(std::int64_t values, DType dtype, const Line& line, Stream& stream) const;
  /// Waits for it: data = what was sent.
  void receive(Message posted, const Tensor& data, const Line& line, Stream& stream) const;

 private:
  Tensor alloc(std::size_t bytes) const;

  const std::shared_ptr<const codec::Codec> codec_;
  const std::int64_t min_bytes_;
  Memory& memory_;
  const std::shared_ptr<BadNotes> notes_;
};

}  // namespace heddle
