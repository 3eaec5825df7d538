#include "parallel/exchange/coded_gather.h"

#include "parallel/exchange/coded_bytes.h"

namespace heddle {

CodedGather::CodedGather(const codec::Codec& codec, Communicator& ranks, Memory& memory,
                         std::int64_t value_bytes)
    : codec_(codec), ranks_(ranks), memory_(memory), value_bytes_(value_bytes) {}

CodedGather::Pending CodedGather::begin(const Tensor& part, const Tensor& bad,
                                        Stream& stream) const {
  const auto alloc = [&](std::size_t bytes) {
    return memory_.alloc({static_cast<std::int64_t>(bytes)}, DType::u8, MemoryTag::communication);
  };
  const std::size_t bound = codec_.encoded_bytes(part.count());
  const Tensor encoded = alloc(bound);
  {
    const Tensor values = as_f32(part, memory_, stream);
    codec_.encode({.x = values,
                   .bytes = encoded,
                   .bad = bad,
                   .workspace = alloc(codec_.workspace_bytes(part.count()))},
                  stream);
  }
  const Tensor cut = cut_to_used(codec_, encoded.view({1, encoded.count()}), part.count(), ranks_,
                                 memory_, stream);
  Pending begun;
  begun.codec_ = &codec_;
  begun.memory_ = &memory_;
  begun.pieces_ = ranks_.size();
  begun.sent_ = cut.view({cut.count()});
  begun.all_ = alloc(static_cast<std::size_t>(begun.pieces_ * cut.count()));
  begun.work_ = ranks_.all_gather(begun.sent_, begun.all_, stream,
                                  value_bytes_ * part.count() * begun.pieces_);
  return begun;
}

void CodedGather::Pending::end(const Tensor& whole, Stream& stream) const {
  work_.wait(stream);
  const Tensor flat = whole.view({whole.count()});
  const std::int64_t bytes = all_.count() / pieces_, values = flat.count() / pieces_;
  for (std::int64_t rank = 0; rank < pieces_; ++rank) {
    decode_to(*codec_, all_.slice(0, rank * bytes, (rank + 1) * bytes),
              flat.slice(0, rank * values, (rank + 1) * values), *memory_, stream);
  }
}

}  // namespace heddle
