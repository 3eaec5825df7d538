// Our ZFP against libzfp, in both directions.
#include <fmt/core.h>
#include <zfp.h>

#include <memory>

#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

/// An array of rows of `columns`; one column for a line.
struct Extent {
  std::size_t columns, rows;
  std::size_t values() const { return columns * rows; }
  std::string codec(int rate) const { return fmt::format("zfp:{}:{}:truncate", rate, columns); }
};

class LibZfp {
 public:
  LibZfp(Floats& values, const Extent& extent, int rate)
      : field_(extent.columns == 1
                   ? zfp_field_1d(values.data(), zfp_type_float, extent.rows)
                   : zfp_field_2d(values.data(), zfp_type_float, extent.columns, extent.rows)),
        stream_(zfp_stream_open(nullptr)) {
    zfp_stream_set_rate(stream_, rate, zfp_type_float, extent.columns == 1 ? 1 : 2, 0);
  }
  ~LibZfp() {
    zfp_field_free(field_);
    zfp_stream_close(stream_);
  }
  LibZfp(const LibZfp&) = delete;
  LibZfp& operator=(const LibZfp&) = delete;

  Bytes encode() {
    Bytes bytes(zfp_stream_maximum_size(stream_, field_) + 8);  // zeros
    const std::size_t size = on(bytes, [&] { return zfp_compress(stream_, field_); });
    bytes.resize((size + 7) / 8 * 8);  // a build may have smaller words than ours of 64 bits
    return bytes;
  }
  /// Into the values.
  void decode(Bytes bytes) {
    bytes.resize(bytes.size() + 64);
    EXPECT_NE(on(bytes, [&] { return zfp_decompress(stream_, field_); }), 0U);
  }

 private:
  template <class Work>
  std::size_t on(Bytes& bytes, const Work& work) {
    bitstream* const bits = stream_open(bytes.data(), bytes.size());
    zfp_stream_set_bit_stream(stream_, bits);
    zfp_stream_rewind(stream_);
    const std::size_t result = work();
    stream_close(bits);
    return result;
  }

  zfp_field* field_;
  zfp_stream* stream_;
};

std::vector<Extent> extents() {
  std::vector<Extent> all;
  for (const std::size_t rows : {1, 2, 3, 4, 5, 7, 63, 64, 1001}) all.push_back({1, rows});
  for (const std::size_t columns : {2, 3, 4, 5, 6, 7, 33}) {
    for (const std::size_t rows : {1, 2, 3, 4, 5, 30}) all.push_back({columns, rows});
  }
  return all;
}

Floats smooth(std::size_t n) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(std::sin(0.05 * static_cast<double>(i)) * 1e3);
  }
  return x;
}

/// Half zeros, in runs: whole blocks of them, and blocks in which one or two are left.
Floats sparse(std::size_t n) {
  Floats x = gaussian(n, 61, 1e-6);
  for (std::size_t i = 0; i < n; ++i) {
    if (random_u64(62, i / 9) % 2 == 0) x[i] = 0.0F;
  }
  return x;
}

Floats wide(std::size_t n) {
  Floats x = gaussian(n, 63);
  for (std::size_t i = 0; i < n; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 60) - 30);
  return x;
}

TEST(Zfp, StreamsAreThoseOfLibzfp) {
  int compared = 0;
  for (const Extent& extent : extents()) {
    for (int rate = 4; rate <= 32; ++rate) {
      for (const auto& make : {+[](std::size_t n) { return gaussian(n, 60); }, &smooth, &sparse,
                               &wide, +[](std::size_t n) { return Floats(n, 0.0F); }}) {
        Floats x = make(extent.values());
        const Bytes want = LibZfp(x, extent, rate).encode();
        const auto codec = make_codec(extent.codec(rate));
        const Bytes got = encode(*codec, x).bytes;
        ASSERT_EQ(got.size(), want.size()) << codec->name() << " of " << x.size();
        ASSERT_EQ(got, want) << codec->name() << " of " << x.size();
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 7000);
}

TEST(Zfp, DecodesStreamsAsLibzfpDoes) {
  for (const Extent& extent : extents()) {
    for (int rate = 4; rate <= 32; ++rate) {
      Floats x = wide(extent.values());
      Bytes bytes = LibZfp(x, extent, rate).encode();
      if (rate % 3 == 0) {  // streams that nobody would write
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          bytes[i] = static_cast<std::uint8_t>(random_u64(64, i));
          if (i % 16 == 1) bytes[i] = 0x7f;  // exponents within reach
        }
      }
      const auto codec = make_codec(extent.codec(rate));
      const Floats got = decode(*codec, bytes, x.size());
      LibZfp(x, extent, rate).decode(bytes);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isfinite(x[i]) && std::abs(x[i]) > 1e-30F) {
          ASSERT_EQ(got[i], x[i]) << codec->name() << " of " << x.size() << " at " << i;
        }
      }
    }
  }
}

TEST(Zfp, TakesFarSmallerValuesThanLibzfp) {
  // Below 2^-97 libzfp's factor is infinite; ours are two.
  Floats x = gaussian(1024, 65, 1e-36);
  const Floats y = round_trip(*make_codec("zfp:16"), x);
  EXPECT_LT(relative_error(x, y), 1e-4);
}

}  // namespace
}  // namespace heddle::codec
