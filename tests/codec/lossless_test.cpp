#include "codec/lossless.h"

#include "base/error.h"
#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

Bytes sent(const Floats& x) {
  const Lossless codec;
  Bytes bytes = encode(codec, x).bytes;
  Stream stream(1);
  bytes.resize(codec.used_bytes(tensor_of(bytes), static_cast<std::int64_t>(x.size()), stream));
  return bytes;
}

double ratio(const Floats& x) {
  return 4.0 * static_cast<double>(x.size()) / static_cast<double>(sent(x).size());
}

TEST(Lossless, KeepsEveryBit) {
  const Lossless codec;
  auto inputs = hard_inputs();
  Floats any(50'000), specials;
  for (std::size_t i = 0; i < any.size(); ++i) {
    any[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(51, i)));
  }
  inputs.push_back({"any bits", any});
  for (const std::uint32_t bits : {0x7f800000U, 0xff800000U, 0x7fc00000U, 0x7f800001U, 0xffffffffU,
                                   0x7fabcdefU, 0x00000001U, 0x80000000U, 0U}) {
    specials.insert(specials.end(), 37, std::bit_cast<float>(bits));
  }
  inputs.push_back({"infinities and payloads of NaN", specials});
  for (const auto& [what, x] : inputs) {
    EXPECT_TRUE(same_bits(decode(codec, sent(x), x.size()), x)) << what;
    const Encoded encoded = encode(codec, x);
    EXPECT_FALSE(encoded.bad.has_value()) << what;
    EXPECT_LE(sent(x).size(), codec.encoded_bytes(static_cast<std::int64_t>(x.size()))) << what;
  }
}

TEST(Lossless, IsWorthItOnWhatIsSent) {
  const Floats normal = gaussian(1 << 18, 52, 1e-4);
  EXPECT_GT(ratio(normal), 1.16) << "of 1.21, the entropy";
  Floats of_bf16 = normal;
  for (float& value : of_bf16) value = to_float(to_bfloat16(value));
  EXPECT_GT(ratio(of_bf16), 2 * 1.4) << "of 2 x 1.52";
  EXPECT_GT(ratio(Floats(1 << 18, 0.0F)), 25.0);
  EXPECT_GT(ratio(Floats(1 << 18, 1.0F)), 25.0);
  Floats any(1 << 18);
  for (std::size_t i = 0; i < any.size(); ++i) {
    any[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_u64(53, i)));
  }
  EXPECT_GT(ratio(any), 0.998) << "what has no order grows by its headers only";
}

TEST(Lossless, RefusesDamagedBytes) {
  const Lossless codec;
  const Floats x = gaussian(5000, 54);
  const Bytes whole = sent(x);
  const auto decodes = [&](const Bytes& bytes) {
    try {
      decode(codec, bytes, x.size(), 2);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      EXPECT_NE(std::string(error.what()).find("lossless"), std::string::npos);
      return false;
    }
  };
  ASSERT_TRUE(decodes(whole));
  Bytes cut = whole;
  for (const std::size_t size :
       {whole.size() - 1, whole.size() / 2, std::size_t{20}, std::size_t{3}, std::size_t{0}}) {
    cut.resize(size);
    EXPECT_FALSE(decodes(cut)) << size;
  }
  int refused = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Bytes damaged = whole;
    damaged[random_u64(55, i) % (i % 2 == 0 ? 28 : whole.size())] ^=
        static_cast<std::uint8_t>(1 + random_u64(56, i) % 255);
    refused += decodes(damaged) ? 0 : 1;
  }
  EXPECT_GT(refused, 800) << "tables and sizes are checked; mantissas may be anything";
}

}  // namespace
}  // namespace heddle::codec
