#include "parallel/exchange/coded_rows.h"

#include "base/check.h"
#include "parallel/exchange/coded_bytes.h"

namespace heddle {

CodedRows::CodedRows(const Compression& compression, std::int64_t width, DType dtype,
                     Memory& memory, std::shared_ptr<BadNotes> notes)
    : codec_(compression.codec(Compression::Kind::experts)),
      min_bytes_(compression.min_bytes),
      width_(width),
      dtype_(dtype),
      memory_(memory),
      notes_(std::move(notes)) {
  HEDDLE_CHECK(!codec_->is_lossless(), "rows of {} have no size", codec_->name());
}

std::int64_t CodedRows::row_bytes(std::int64_t width, DType) const {
  return static_cast<std::int64_t>(codec_->encoded_bytes(width));
}

Tensor CodedRows::at(ExpertPlace place, const Tensor& rows, Ctx& ctx) const {
  switch (place) {
    case ExpertPlace::before_dispatch:
    case ExpertPlace::before_combine: return encoded(rows, ctx.stream);
    case ExpertPlace::after_dispatch:
    case ExpertPlace::after_combine: return decoded(rows, ctx);
    case ExpertPlace::start:
    case ExpertPlace::end: break;
  }
  return rows;
}

Tensor CodedRows::encoded(const Tensor& rows, Stream& stream) const {
  const auto alloc = [&](const Shape& shape) {
    return memory_.alloc(shape, DType::u8, MemoryTag::communication);
  };
  Tensor bytes = alloc({rows.size(0), row_bytes(width_, dtype_)});
  if (rows.count() == 0) return bytes;
  codec_->encode(
      {.x = as_f32(rows, memory_, stream),
       .bytes = bytes.view({bytes.count()}),
       .bad = notes_->own(),
       .workspace = alloc({static_cast<std::int64_t>(codec_->workspace_bytes(rows.count()))}),
       .piece = are_whole_blocks() ? 0 : width_},
      stream);
  return bytes;
}

Tensor CodedRows::decoded(const Tensor& bytes, Ctx& ctx) const {
  Tensor rows = ctx.activation({bytes.size(0), width_}, dtype_);
  if (bytes.count() == 0) return rows;
  if (are_whole_blocks()) {
    decode_to(*codec_, bytes.view({bytes.count()}), rows, memory_, ctx.stream);
    return rows;
  }
  for (std::int64_t row = 0; row < bytes.size(0); ++row) {
    decode_to(*codec_, bytes.slice(0, row, row + 1).view({bytes.size(1)}),
              rows.slice(0, row, row + 1), memory_, ctx.stream);
  }
  return rows;
}

}  // namespace heddle
