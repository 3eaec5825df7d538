#include "codec/codec.h"

#include <map>

#include "base/crc32c.h"
#include "base/error.h"
#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

/// A part of x with the other sign, or something of its own where the sum stays finite.
Floats some_residual(const Floats& x) {
  Floats residual(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool is_part = i % 2 == 0 || std::abs(x[i]) > 1e30F;
    residual[i] = is_part ? x[i] * static_cast<float>(-random_uniform(11, i))
                          : static_cast<float>(1e-3 * random_normal(12, i));
  }
  return residual;
}

bool rounds_to_nearest(const Codec& codec) {
  const std::string name = codec.name();
  return name.starts_with("bf16") || name.starts_with("int") || name.starts_with("fp8") ||
         name.starts_with("e3m0");
}

TEST(Codec, LeavesExactlyWhatIsLostInTheResidual) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    if (codec->is_lossless()) continue;
    for (const auto& [what, x] : hard_inputs()) {
      SCOPED_TRACE(name + ", " + what);
      const Floats before = some_residual(x);
      const Encoded encoded = encode(*codec, x, {.residual = &before});
      ASSERT_FALSE(encoded.bad.has_value());
      const Floats decoded = decode(*codec, encoded.bytes, x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float sum = x[i] + before[i];
        const float lost = sum - decoded[i];
        ASSERT_EQ(lost, encoded.residual[i]) << i << ": " << sum << " became " << decoded[i];
        ASSERT_TRUE(std::isfinite(encoded.residual[i]));
        if (rounds_to_nearest(*codec)) {
          // The difference is a float, so the sum comes back to the bit.
          ASSERT_EQ(decoded[i] + encoded.residual[i], sum) << i;
        }
      }
    }
  }
}

TEST(Codec, EncodesASumWithItsResidualLikeTheSum) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    if (codec->is_lossless()) continue;
    const Floats x = gaussian(5003, 1), residual = gaussian(5003, 2, 0.3);
    Floats sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + residual[i];
    EXPECT_EQ(encode(*codec, x, {.residual = &residual}).bytes, encode(*codec, sum).bytes) << name;
  }
}

TEST(Codec, WithErrorFeedbackSendsEverythingInTheEnd) {
  // The mean of what is decoded over many steps of one gradient approaches it, also where one step
  // alone keeps little.
  const Floats x = gaussian(4096, 3);
  for (const std::string name : {"sign", "topk", "int4", "e3m0", "zfp:4"}) {
    const auto codec = make_codec(name);
    Floats residual(x.size()), sum(x.size());
    constexpr int kSteps = 200;
    for (int step = 0; step < kSteps; ++step) {
      const Encoded encoded = encode(*codec, x, {.residual = &residual});
      residual = encoded.residual;
      sum = decode_add(*codec, encoded.bytes, sum);
    }
    for (float& value : sum) value /= kSteps;
    EXPECT_LT(relative_error(x, sum), name == "topk" ? 0.3 : 0.1) << name;
  }
}

TEST(Codec, AddsWhatItDecodes) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    for (const auto& [what, x] : hard_inputs()) {
      const Bytes bytes = encode(*codec, x).bytes;
      const Floats decoded = decode(*codec, bytes, x.size());
      Floats want = gaussian(x.size(), 12);
      const Floats got = decode_add(*codec, bytes, want);
      for (std::size_t i = 0; i < x.size(); ++i) want[i] += decoded[i];
      EXPECT_TRUE(same_bits(got, want)) << name << ", " << what;
    }
  }
}

TEST(Codec, GivesTheSameOnAnyNumberOfThreads) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    const Floats x = gaussian(200'003, 4), zeros(x.size());
    const Floats* const residual = codec->is_lossless() ? nullptr : &zeros;
    const Encoded one = encode(*codec, x, {.residual = residual});
    const std::size_t used = [&] {
      Stream stream(1);
      return codec->used_bytes(tensor_of(one.bytes), 200'003, stream);
    }();
    const Floats decoded = decode(*codec, one.bytes, x.size());
    for (const int threads : {2, 5}) {
      const Encoded many = encode(*codec, x, {.residual = residual, .threads = threads});
      EXPECT_EQ(std::memcmp(many.bytes.data(), one.bytes.data(), used), 0) << name;
      EXPECT_TRUE(same_bits(many.residual, one.residual)) << name;
      EXPECT_TRUE(same_bits(decode(*codec, one.bytes, x.size(), threads), decoded)) << name;
      EXPECT_TRUE(same_bits(decode_add(*codec, one.bytes, zeros, threads),
                            decode_add(*codec, one.bytes, zeros)))
          << name;
    }
  }
}

TEST(Codec, WritesTheSameBytesOnEveryProcessorAndInEveryVersion) {
  // Values from integers, so that no mathematics library has a part in it. CTest runs this for
  // every instruction set.
  Floats x(30'011);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto mantissa = static_cast<std::int32_t>(random_u64(15, i) % 20'001) - 10'000;
    x[i] = std::ldexp(static_cast<float>(mantissa), -static_cast<int>(random_u64(16, i) % 12));
  }
  const std::map<std::string, std::uint32_t> sums = {{"bf16", 0x54c9808dU},
                                                     {"int8", 0x55153685U},
                                                     {"int8:64", 0x19a82b67U},
                                                     {"int8:8", 0xc1d4b42dU},
                                                     {"int4", 0x94012e73U},
                                                     {"int4:1024", 0xc60f119bU},
                                                     {"fp8", 0xa6fd80a5U},
                                                     {"fp8:32", 0xb1c28f4aU},
                                                     {"e3m0", 0x62c68016U},
                                                     {"e3m0:24", 0x8f0b79cfU},
                                                     {"sign", 0x895f29afU},
                                                     {"topk", 0x6e39bd23U},
                                                     {"topk:3:32", 0x5aea8e6aU},
                                                     {"topk:64:64", 0x35402fceU},
                                                     {"zfp", 0x16912ba9U},
                                                     {"zfp:5:1", 0x722b7f69U},
                                                     {"zfp:16:1", 0x921b7140U},
                                                     {"zfp:9:10", 0xff550cbfU},
                                                     {"zfp:11:1:truncate", 0x8e90f157U},
                                                     {"zfp:24:33", 0xc64478b2U},
                                                     {"zfp:32", 0xfe687902U},
                                                     {"topk:100:65536", 0x22df2d5bU},
                                                     {"lossless", 0x531ee91bU}};
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    Bytes bytes = encode(*codec, x).bytes;
    Stream stream(1);
    bytes.resize(codec->used_bytes(tensor_of(bytes), 30'011, stream));
    const std::uint32_t sum = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    EXPECT_EQ(sum, sums.at(name)) << name;
  }
}

TEST(Codec, CutAtItsBlocksGivesTheBytesOfTheWhole) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    if (codec->block() == 0) continue;
    const std::int64_t block = codec->block(), n = 3 * std::max<std::int64_t>(block, 2000) + 5;
    const Floats x = gaussian(static_cast<std::size_t>(n), 5);
    const Floats before = some_residual(x);
    const Encoded whole = encode(*codec, x, {.residual = &before});
    const std::int64_t step = block * std::max<std::int64_t>(1, 700 / block);
    const Encoded in_pieces = encode(*codec, x, {.residual = &before, .piece = step});
    EXPECT_EQ(in_pieces.bytes, whole.bytes) << name;
    EXPECT_TRUE(same_bits(in_pieces.residual, whole.residual)) << name;
    Bytes joined;
    Floats residuals;
    for (std::int64_t at = 0; at < n; at += step) {
      const std::int64_t end = std::min(at + step, n);
      const Floats part(x.begin() + at, x.begin() + end);
      const Floats part_before(before.begin() + at, before.begin() + end);
      const Encoded encoded = encode(*codec, part, {.residual = &part_before});
      joined.insert(joined.end(), encoded.bytes.begin(), encoded.bytes.end());
      residuals.insert(residuals.end(), encoded.residual.begin(), encoded.residual.end());
    }
    EXPECT_EQ(joined, whole.bytes) << name;
    EXPECT_TRUE(same_bits(residuals, whole.residual)) << name;
  }
}

TEST(Codec, DecodesEachPieceByItself) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    for (const std::int64_t piece : {1, 13, 333, 5000, 9000}) {
      const Floats x = gaussian(9001, 6);
      const Bytes bytes = encode(*codec, x, {.piece = piece, .threads = 2}).bytes;
      Floats joined;
      std::size_t at = 0;
      for (std::int64_t first = 0; first < 9001; first += piece) {
        const std::int64_t n = std::min<std::int64_t>(piece, 9001 - first);
        const std::size_t size = codec->encoded_bytes(n);
        const Floats part = decode(*codec,
                                   Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(at + size)),
                                   static_cast<std::size_t>(n));
        joined.insert(joined.end(), part.begin(), part.end());
        at += size;
      }
      ASSERT_EQ(at, bytes.size());
      // As good as the whole; of signs the same, whose scale is that of the tensor.
      if (codec->block() == 0) {
        EXPECT_TRUE(same_bits(joined, round_trip(*codec, x))) << name;
      }
      if (piece >= 333) {
        EXPECT_LT(relative_error(x, joined), 1.1 * relative_error(x, round_trip(*codec, x)) + 1e-9)
            << name << " in pieces of " << piece;
      }
    }
  }
}

TEST(Codec, NamesTheFirstValueThatIsNotFinite) {
  using Limits = std::numeric_limits<float>;
  const Floats zeros(20'000);
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    if (codec->is_lossless()) continue;
    for (const float value : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
      Floats x = gaussian(20'000, 13);
      x[9123] = value;
      x[15'000] = Limits::infinity();
      const Encoded encoded = encode(*codec, x, {.residual = &zeros, .threads = 3});
      EXPECT_EQ(encoded.bad, 9123) << name;
      EXPECT_EQ(encode(*codec, x).bad, 9123) << name;
      // What stands around it decodes to zero and keeps its residual.
      const Floats decoded = decode(*codec, encoded.bytes, x.size());
      EXPECT_EQ(decoded[9123], 0.0F) << name;
      EXPECT_EQ(encoded.residual[9123], 0.0F) << name;
      for (const float residual : encoded.residual) ASSERT_TRUE(std::isfinite(residual)) << name;
    }
    const Floats large(100, Limits::max());
    EXPECT_EQ(encode(*codec, large).bad, std::nullopt) << name;
    EXPECT_EQ(encode(*codec, large, {.residual = &large}).bad, 0) << name << ": the sum overflows";
  }
}

TEST(Codec, RefusesByNameWhatIsNotFinite) {
  const auto codec = make_codec("int8");
  Stream stream(1);
  const Tensor bad = tensor_of<std::int64_t>({0});
  require_finite(bad, *codec, "the gradient of lm_head.weight", stream);
  Floats x = gaussian(500, 1);
  x[300] = std::numeric_limits<float>::infinity();
  const Tensor bytes = tensor_of(Bytes(codec->encoded_bytes(500)));
  codec->encode({.x = tensor_of(x), .bytes = bytes, .bad = bad}, stream);
  try {
    require_finite(bad, *codec, "the gradient of lm_head.weight", stream);
    FAIL() << "an infinity went through";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    for (const char* part : {"300", "the gradient of lm_head.weight", "int8:128", "infinite"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Codec, TouchesNothingOnADryStream) {
  const auto dry = Stream::dry();
  Stream stream = dry;
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    const Tensor x = tensor_of(gaussian(300, 1)), y = tensor_of(Floats(300, 5.0F));
    const Tensor bytes = tensor_of(Bytes(codec->encoded_bytes(300), 9));
    const Tensor bad = tensor_of<std::int64_t>({0});
    codec->encode({.x = x,
                   .bytes = bytes,
                   .bad = bad,
                   .workspace = tensor_of(Bytes(codec->workspace_bytes(300)))},
                  stream);
    codec->decode_add(bytes, y, stream);
    EXPECT_EQ(codec->used_bytes(bytes, 300, stream), codec->encoded_bytes(300));
    EXPECT_EQ(values_of<std::uint8_t>(bytes), Bytes(codec->encoded_bytes(300), 9));
    EXPECT_EQ(values_of<float>(y), Floats(300, 5.0F));
  }
}

TEST(Codec, RefusesOperandsThatDoNotFit) {
  const auto codec = make_codec("int8"), lossless = make_codec("lossless");
  Stream stream(1);
  const Tensor x = tensor_of(gaussian(300, 1)), bad = tensor_of<std::int64_t>({0});
  const Tensor bytes = tensor_of(Bytes(codec->encoded_bytes(300)));
  const Tensor few = tensor_of(Bytes(codec->encoded_bytes(300) - 1));
  EXPECT_THROW(codec->encode({.x = x, .bytes = few, .bad = bad}, stream), Error);
  EXPECT_THROW(codec->encode({.x = x, .bytes = bytes, .bad = {}}, stream), Error);
  EXPECT_THROW(
      codec->encode({.x = x, .residual = tensor_of(Floats(299)), .bytes = bytes, .bad = bad},
                    stream),
      Error);
  EXPECT_THROW(codec->decode(few, x, stream), Error);
  EXPECT_THROW(
      make_codec("sign")->encode({.x = x, .bytes = tensor_of(Bytes(4 + 38)), .bad = bad}, stream),
      Error)
      << "without its workspace";
  EXPECT_THROW(lossless->encode({.x = x,
                                 .residual = x,
                                 .bytes = tensor_of(Bytes(lossless->encoded_bytes(300))),
                                 .bad = bad},
                                stream),
               Error);
}

}  // namespace
}  // namespace heddle::codec
