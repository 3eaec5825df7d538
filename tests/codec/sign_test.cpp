#include "codec/sign.h"

#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

TEST(Sign, DecodesToTheMeanMagnitudeOfTheTensor) {
  const Sign codec;
  const Floats x = {0.5F, -1.5F, 0.0F, -0.0F, 3.0F, -1.0F};
  const Floats y = round_trip(codec, x);
  EXPECT_EQ(y, (Floats{1.0F, -1.0F, 1.0F, 1.0F, 1.0F, -1.0F})) << "zeros count as positive";
  EXPECT_EQ(encode(codec, x).bytes, (Bytes{0, 0, 0x80, 0x3f, 0b010101 | 0b001000}));
}

TEST(Sign, HasOneScaleHoweverTheTensorIsCut) {
  const Sign codec;
  const Floats x = gaussian(100'001, 31);
  double sum = 0;
  for (const float value : x) sum += std::abs(static_cast<double>(value));
  const auto mean = static_cast<float>(sum / 100'001.0);
  for (const std::int64_t piece : {0, 8192, 50'001, 12'345}) {
    const Bytes bytes = encode(codec, x, {.piece = piece, .threads = 3}).bytes;
    const std::int64_t length = piece == 0 ? 100'001 : piece;
    for (std::int64_t first = 0, at = 0; first < 100'001; first += length) {
      float scale = 0;
      std::memcpy(&scale, bytes.data() + at, sizeof scale);
      EXPECT_EQ(scale, mean);
      at += static_cast<std::int64_t>(codec.encoded_bytes(length));
    }
  }
}

TEST(Sign, NeverMakesATensorLonger) {
  // Rows of very different size: with the root mean square for a scale, more would be lost than
  // there was.
  Floats x = gaussian(1 << 16, 33);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] *= static_cast<float>(std::exp(1.5 * random_normal(34, i / 256)));
  }
  const double error = relative_error(x, round_trip(Sign(), x));
  EXPECT_LT(error, 1.0);
  EXPECT_GT(error, 0.8);
}

}  // namespace
}  // namespace heddle::codec
