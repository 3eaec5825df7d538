// Every codec on a GPU against the CPU: the same bytes, values and residuals to the bit.
#include <memory>

#include "base/error.h"
#include "codec/codec_testing.h"
#include "tensor/device.h"
#include "tensor/transfer.h"

namespace heddle::codec {
namespace {

class CudaCodec : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    stream_ = std::make_unique<Stream>(1, kGpu);
    memory_ = std::make_unique<Memory>(Memory::Mode::real, kGpu);
  }

  template <class T>
  Tensor on_gpu(const std::vector<T>& values) {
    return to_device(tensor_of(values), *memory_, MemoryTag::workspace, *stream_);
  }
  template <class T>
  std::vector<T> from_gpu(const Tensor& t) {
    const Tensor host = to_host(t, *stream_);
    return values_of<T>(host);
  }

  /// As codec::encode of the CPU's tests, `shift` bytes into an allocation, between guards.
  Encoded encode_on_gpu(const Codec& codec, const Floats& x, const EncodeOptions& options,
                        std::int64_t shift) {
    const auto n = static_cast<std::int64_t>(x.size());
    const std::int64_t piece = options.piece > 0 ? options.piece : std::max<std::int64_t>(n, 1);
    const auto size = static_cast<std::int64_t>(codec.encoded_bytes(n, piece));
    constexpr std::int64_t kGuard = 16;
    const Tensor room = on_gpu(Bytes(static_cast<std::size_t>(size + shift + kGuard), 0xa5));
    const Tensor bad = on_gpu<std::int64_t>({0});
    const Tensor residual = options.residual == nullptr ? Tensor() : on_gpu(*options.residual);
    codec.encode({.x = on_gpu(x),
                  .residual = residual,
                  .bytes = room.slice(0, shift, shift + size),
                  .bad = bad,
                  .workspace = on_gpu(Bytes(codec.workspace_bytes(n))),
                  .piece = options.piece},
                 *stream_);
    const Bytes all = from_gpu<std::uint8_t>(room);
    for (std::int64_t i = 0; i < shift + kGuard; ++i) {
      const std::int64_t at = i < shift ? i : i + size;
      EXPECT_EQ(all[static_cast<std::size_t>(at)], 0xa5) << codec.name() << " wrote outside";
    }
    return {.bytes = {all.begin() + shift, all.begin() + shift + size},
            .residual = options.residual == nullptr ? Floats() : from_gpu<float>(residual),
            .bad = first_bad(bad, *stream_)};
  }

  Floats decode_on_gpu(const Codec& codec, const Bytes& bytes, const Floats& to, bool adds) {
    const Tensor y = on_gpu(to);
    adds ? codec.decode_add(on_gpu(bytes), y, *stream_) : codec.decode(on_gpu(bytes), y, *stream_);
    return from_gpu<float>(y);
  }

  /// Of each piece what it uses; the rest of a lossless piece is left as it was.
  void expect_same_bytes(const Codec& codec, const Bytes& got, const Bytes& want, std::int64_t n,
                         std::int64_t piece) {
    Stream host(1);
    std::size_t at = 0;
    for (std::int64_t first = 0; first < n; first += piece) {
      const std::int64_t count = std::min(piece, n - first);
      const std::size_t size = codec.encoded_bytes(count);
      const auto begin = want.begin() + static_cast<std::ptrdiff_t>(at);
      const Bytes own(begin, begin + static_cast<std::ptrdiff_t>(size));
      const std::size_t used = codec.used_bytes(tensor_of(own), count, host);
      ASSERT_EQ(std::memcmp(got.data() + at, want.data() + at, used), 0)
          << codec.name() << ", piece at " << first;
      at += size;
    }
  }

  void expect_as_on_cpu(const Codec& codec, const Floats& x, const EncodeOptions& options,
                        std::int64_t shift = 0) {
    const auto n = static_cast<std::int64_t>(x.size());
    const Encoded want = encode(codec, x, options);
    const Encoded got = encode_on_gpu(codec, x, options, shift);
    EXPECT_EQ(got.bad, want.bad);
    EXPECT_TRUE(same_bits(got.residual, want.residual));
    const std::int64_t piece = options.piece > 0 ? options.piece : std::max<std::int64_t>(n, 1);
    expect_same_bytes(codec, got.bytes, want.bytes, n, piece);
    if (piece < n) return;
    EXPECT_TRUE(same_bits(decode_on_gpu(codec, want.bytes, Floats(x.size(), 777.0F), false),
                          decode(codec, want.bytes, x.size())));
    const Floats before = gaussian(x.size(), 12);
    EXPECT_TRUE(same_bits(decode_on_gpu(codec, want.bytes, before, true),
                          decode_add(codec, want.bytes, before)));
  }

  static constexpr Device kGpu{Device::Kind::cuda, 0};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> memory_;
};

TEST_F(CudaCodec, GivesTheBytesValuesAndResidualsOfTheCpu) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    for (const auto& [what, x] : hard_inputs()) {
      SCOPED_TRACE(name + ", " + what);
      expect_as_on_cpu(*codec, x, {});
      const Floats residual = gaussian(x.size(), 3, 1e-3);
      if (!codec->is_lossless()) expect_as_on_cpu(*codec, x, {.residual = &residual}, 3);
      if (HasFailure()) return;
    }
    const Floats large = gaussian(1'000'003, 4);
    expect_as_on_cpu(*codec, large, {});
  }
}

TEST_F(CudaCodec, GivesThePiecesOfTheCpu) {
  const Floats x = gaussian(9001, 6), residual = gaussian(9001, 7, 0.1);
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    for (const std::int64_t piece : {1, 13, 333, 4096, 5000, 8192, 9000}) {
      SCOPED_TRACE(name + " in pieces of " + std::to_string(piece));
      expect_as_on_cpu(*codec, x, {.piece = piece}, 2);
      if (!codec->is_lossless()) {
        expect_as_on_cpu(*codec, x, {.residual = &residual, .piece = piece});
      }
    }
  }
}

TEST_F(CudaCodec, TreatsValuesThatAreNotFiniteAsTheCpuDoes) {
  using Limits = std::numeric_limits<float>;
  const Floats zeros(20'000), large(100, Limits::max());
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    if (codec->is_lossless()) continue;
    SCOPED_TRACE(name);
    for (const float value : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
      Floats x = gaussian(20'000, 13);
      x[9123] = value;
      x[15'000] = Limits::infinity();
      expect_as_on_cpu(*codec, x, {.residual = &zeros});
      expect_as_on_cpu(*codec, x, {.piece = 6000});
    }
    expect_as_on_cpu(*codec, large, {.residual = &large});
  }
}

TEST_F(CudaCodec, RefusesDamagedBytes) {
  const auto codec = make_codec("lossless");
  const Floats x = gaussian(5000, 1);
  const Bytes bytes = encode(*codec, x).bytes;
  for (const std::size_t at : {0U, 1U, 5U, 21U}) {
    Bytes damaged = bytes;
    damaged[at] = static_cast<std::uint8_t>(damaged[at] ^ 0x45U);
    try {
      decode_on_gpu(*codec, damaged, Floats(x.size()), false);
      FAIL() << "byte " << at << " went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
    }
  }
}

}  // namespace
}  // namespace heddle::codec
