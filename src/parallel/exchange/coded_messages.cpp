#include "parallel/exchange/coded_messages.h"

#include "base/check.h"
#include "parallel/exchange/coded_bytes.h"

namespace heddle {
namespace {

std::int64_t payload_of(std::int64_t values, DType dtype) {
  return values * static_cast<std::int64_t>(size_of(dtype));
}

/// Sizes have tags of their own: the next one is waited for before the message of this one is.
int size_tag(int tag) {
  constexpr int kFirst = 1 << 13;
  HEDDLE_CHECK(tag < kFirst, "a message of tag {}", tag);
  return kFirst + tag;
}

}  // namespace

CodedMessages::CodedMessages(const Compression& compression, Memory& memory,
                             std::shared_ptr<BadNotes> notes)
    : codec_(compression.codec(Compression::Kind::pipeline)),
      min_bytes_(compression.min_bytes),
      memory_(memory),
      notes_(std::move(notes)) {}

Tensor CodedMessages::alloc(std::size_t bytes) const {
  return memory_.alloc({static_cast<std::int64_t>(bytes)}, DType::u8, MemoryTag::communication);
}

CodedMessages::Message CodedMessages::send(const Tensor& data, const Line& line,
                                           Stream& stream) const {
  Message message;
  message.bytes = alloc(codec_->encoded_bytes(data.count()));
  codec_->encode({.x = as_f32(data, memory_, stream),
                  .bytes = message.bytes,
                  .bad = notes_->own(),
                  .workspace = alloc(codec_->workspace_bytes(data.count()))},
                 stream);
  Tensor sent = message.bytes;
  if (sends_sizes()) {
    const std::size_t used = codec_->used_bytes(message.bytes, data.count(), stream);
    message.size = memory_.for_host().alloc({1}, DType::f64, MemoryTag::communication);
    if (!stream.is_dry()) message.size.host<double>()[0] = static_cast<double>(used);
    message.works.push_back(
        line.pipeline.send(message.size, line.peer, stream, size_tag(line.tag)));
    sent = sent.slice(0, 0, static_cast<std::int64_t>(used));
  }
  message.works.push_back(line.pipeline.send(sent, line.peer, stream, line.tag,
                                             payload_of(data.count(), data.dtype())));
  return message;
}

CodedMessages::Message CodedMessages::post(std::int64_t values, DType dtype, const Line& line,
                                           Stream& stream) const {
  Message message;
  if (sends_sizes()) {
    message.size = memory_.for_host().alloc({1}, DType::f64, MemoryTag::communication);
    message.works.push_back(
        line.pipeline.recv(message.size, line.peer, stream, size_tag(line.tag)));
    return message;
  }
  message.bytes = alloc(codec_->encoded_bytes(values));
  message.works.push_back(
      line.pipeline.recv(message.bytes, line.peer, stream, line.tag, payload_of(values, dtype)));
  return message;
}

void CodedMessages::receive(Message posted, const Tensor& data, const Line& line,
                            Stream& stream) const {
  posted.wait(stream);
  if (sends_sizes()) {
    const std::size_t used = stream.is_dry()
                                 ? codec_->encoded_bytes(data.count())
                                 : static_cast<std::size_t>(posted.size.host<double>()[0]);
    posted.bytes = alloc(used);
    line.pipeline
        .recv(posted.bytes, line.peer, stream, line.tag, payload_of(data.count(), data.dtype()))
        .wait(stream);
  }
  decode_to(*codec_, posted.bytes, data, memory_, stream);
}

}  // namespace heddle
