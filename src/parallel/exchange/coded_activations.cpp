#include "parallel/exchange/coded_activations.h"

#include "ops/cast.h"
#include "parallel/exchange/coded_bytes.h"

namespace heddle {

CodedActivations::CodedActivations(const Compression& compression, DType dtype, Communicator& ranks,
                                   Memory& memory, std::shared_ptr<BadNotes> notes)
    : codec_(compression.codec(Compression::Kind::tensor)),
      min_bytes_(compression.min_bytes),
      ranks_(ranks),
      memory_(memory),
      notes_(std::move(notes)),
      sums_(codec_, ranks, memory, static_cast<std::int64_t>(size_of(dtype))),
      gathers_(*codec_, ranks, memory, static_cast<std::int64_t>(size_of(dtype))) {}

bool CodedActivations::takes(std::int64_t elements, DType dtype) const {
  return elements % ranks_.size() == 0 &&
         elements * static_cast<std::int64_t>(size_of(dtype)) >= min_bytes_;
}

void CodedActivations::scatter(const Tensor& whole, const Tensor& part, Stream& stream) const {
  sums_.scatter(as_f32(whole, memory_, stream), part, {.bad = notes_->own()}, stream).end(stream);
}

void CodedActivations::all_reduce(const Tensor& x, Stream& stream) const {
  const Tensor part =
      memory_.alloc({x.count() / ranks_.size()}, DType::f32, MemoryTag::communication);
  scatter(x, part, stream);
  gathers_.begin(part, notes_->own(), stream).end(x, stream);
}

void CodedActivations::all_gather(const Tensor& part, const Tensor& whole, Stream& stream) const {
  gathers_.begin(part, notes_->own(), stream).end(whole, stream);
}

void CodedActivations::reduce_scatter(const Tensor& whole, const Tensor& part,
                                      Stream& stream) const {
  const Tensor flat = part.view({part.count()});
  if (part.dtype() == DType::f32) return scatter(whole, flat, stream);
  const Tensor wide = memory_.alloc(flat.shape(), DType::f32, MemoryTag::communication);
  scatter(whole, wide, stream);
  ops::cast(wide, flat, stream);
}

std::vector<LayerCall> CodedActivations::calls(CommOp op, std::int64_t elements,
                                               DType dtype) const {
  const std::int64_t ranks = ranks_.size();
  const auto wire = ranks * static_cast<std::int64_t>(codec_->encoded_bytes(elements / ranks));
  const std::int64_t payload = elements * static_cast<std::int64_t>(size_of(dtype));
  std::vector<LayerCall> all;
  const auto add = [&](CommOp made) {
    if (codec_->is_lossless()) all.push_back({&ranks_, CommOp::all_reduce, sizeof(double)});
    all.push_back({&ranks_, made, wire, false, payload});
  };
  if (op != CommOp::all_gather) add(CommOp::all_to_all);
  if (op != CommOp::reduce_scatter) add(CommOp::all_gather);
  return all;
}

}  // namespace heddle
