#include "codec/codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "codec/kernels.h"
#include "codec/lossless.h"
#include "tensor/device_runtime.h"
#include "tensor/transfer.h"

namespace heddle::codec {
namespace {

void check_operand(const Tensor& t, DType dtype, const char* what) {
  HEDDLE_CHECK(t.defined() && t.dtype() == dtype && t.is_contiguous(),
               "a codec's {} must be contiguous {}", what, name_of(dtype));
}

/// On a GPU, keeps what waits for other ranks from being launched meanwhile (ops/dispatch.cpp).
class CodecLaunch {
 public:
  explicit CodecLaunch(Device device) {
    if (device.kind == Device::Kind::cuda) lock_.emplace();
  }

 private:
  std::optional<device_runtime::LaunchLock> lock_;
};

}  // namespace

std::size_t Codec::encoded_bytes(std::int64_t values, std::int64_t piece) const {
  HEDDLE_CHECK(values >= 0 && piece > 0, "{} values in pieces of {}", values, piece);
  return static_cast<std::size_t>(values / piece) * encoded_bytes(piece) +
         encoded_bytes(values % piece);
}

void Codec::encode(const Encoding& operands, Stream& stream) const {
  const std::int64_t values = operands.x.count();
  check_operand(operands.x, DType::f32, "values");
  check_operand(operands.bytes, DType::u8, "bytes");
  check_operand(operands.bad, DType::i64, "note of bad values");
  if (operands.residual.defined()) {
    check_operand(operands.residual, DType::f32, "residual");
    HEDDLE_CHECK(!is_lossless() && operands.residual.count() == values,
                 "a residual of {} values for {} of {}", operands.residual.count(), values, name());
  }
  if (values == 0) return;
  const std::int64_t piece = operands.piece > 0 ? std::min(operands.piece, values) : values;
  HEDDLE_CHECK(operands.bytes.size_bytes() == encoded_bytes(values, piece),
               "{} bytes for {} values of {} in pieces of {}, which take {}",
               operands.bytes.size_bytes(), values, name(), piece, encoded_bytes(values, piece));
  const std::size_t workspace = workspace_bytes(values);
  if (workspace > 0) {
    check_operand(operands.workspace, DType::u8, "workspace");
    HEDDLE_CHECK(operands.workspace.size_bytes() >= workspace, "{} bytes of workspace, {} needed",
                 operands.workspace.size_bytes(), workspace);
  }
  if (stream.is_dry()) return;
  const CodecLaunch launch(stream.device());
  const EncodeCall call{
      .x = operands.x.data<float>(),
      .residual = operands.residual.defined() ? operands.residual.data<float>() : nullptr,
      .bytes = operands.bytes.bytes(),
      .workspace = workspace > 0 ? operands.workspace.bytes() : nullptr,
      .bad = operands.bad.data<std::int64_t>(),
      .values = values,
      .piece = piece,
      .piece_bytes = encoded_bytes(piece)};
  run(call, stream);
}

void Codec::decode(const Tensor& bytes, const Tensor& y, Stream& stream) const {
  decode(bytes, y, false, stream);
}

void Codec::decode_add(const Tensor& bytes, const Tensor& y, Stream& stream) const {
  decode(bytes, y, true, stream);
}

void Codec::decode(const Tensor& bytes, const Tensor& y, bool adds, Stream& stream) const {
  check_operand(bytes, DType::u8, "bytes");
  check_operand(y, DType::f32, "values");
  if (y.count() == 0) return;
  HEDDLE_CHECK(is_lossless() || bytes.size_bytes() == encoded_bytes(y.count()),
               "{} bytes for {} values of {}, which take {}", bytes.size_bytes(), y.count(), name(),
               encoded_bytes(y.count()));
  if (stream.is_dry()) return;
  const CodecLaunch launch(stream.device());
  run(DecodeCall{.bytes = bytes.bytes(),
                 .size_bytes = bytes.size_bytes(),
                 .y = y.data<float>(),
                 .values = y.count(),
                 .adds = adds},
      stream);
}

std::optional<std::int64_t> first_bad(const Tensor& bad, Stream& stream) {
  check_operand(bad, DType::i64, "note of bad values");
  if (stream.is_dry()) return std::nullopt;
  const std::int64_t noted = to_host(bad, stream).host<std::int64_t>()[0];
  if (noted == 0) return std::nullopt;
  return kBadTop - noted;
}

void require_finite(const Tensor& bad, const Codec& codec, const std::string& what,
                    Stream& stream) {
  const auto index = first_bad(bad, stream);
  if (!index) return;
  throw Error(ErrorCode::data,
              fmt::format("value {} of {} is infinite or not a number, or becomes so with what was "
                          "left over from earlier steps; codec {} takes finite values only",
                          *index, what, codec.name()),
              "lower the learning rate or clip gradients; or send them uncompressed");
}

std::size_t Lossless::used_bytes(const Tensor& bytes, std::int64_t values, Stream& stream) const {
  if (values == 0 || stream.is_dry()) return encoded_bytes(values);
  const auto table = static_cast<std::int64_t>(table_bytes(values));
  const Tensor last = to_host(bytes.slice(0, table - 4, table), stream);
  std::uint32_t words = 0;
  std::memcpy(&words, last.bytes(), sizeof words);
  return 4 * static_cast<std::size_t>(words);
}

void Lossless::refuse_damaged() const {
  throw Error(ErrorCode::peer,
              fmt::format("bytes that another rank encoded as {} are damaged", name()),
              "look at the network between the ranks, and whether all run the same heddle");
}

}  // namespace heddle::codec
