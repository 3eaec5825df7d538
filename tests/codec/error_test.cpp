// What codecs lose of Gaussian values: the measured tables of the papers' digest, within 5 %.
#include <fmt/core.h>

#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

struct Loss {
  std::string codec;
  double error;
};

void expect_loss(const std::string& what, double got, double want) {
  EXPECT_NEAR(got, want, 0.05 * want) << what;
}

TEST(CodecError, OnGaussianValuesIsThatOfTheTable) {
  const Floats x = gaussian(1 << 17, 71);
  const std::vector<Loss> table = {{"zfp:4:1:truncate", 0.97},
                                   {"zfp:6:1:truncate", 0.22},
                                   {"zfp:8:1:truncate", 0.054},
                                   {"zfp:10:1:truncate", .0135},
                                   {"zfp:12:1:truncate", 3.4e-3},
                                   {"zfp:16:1:truncate", 2.1e-4},
                                   {"zfp:24:1:truncate", 8.2e-7},
                                   {"zfp:4:4:truncate", 0.29},
                                   {"zfp:6:4:truncate", 0.073},
                                   {"zfp:8:4:truncate", 0.018},
                                   {"zfp:10:4:truncate", 4.5e-3},
                                   {"zfp:12:4:truncate", 1.1e-3},
                                   {"zfp:16:4:truncate", 7.1e-5},
                                   {"zfp:24:4:truncate", 2.8e-7},
                                   {"int4:32", 0.097},
                                   {"int4:128", 0.118},
                                   {"int4:1024", 0.144},
                                   {"int8:32", 5.4e-3},
                                   {"int8:128", 6.5e-3},
                                   {"int8:1024", 7.9e-3},
                                   {"fp8:128", 0.026},
                                   {"e3m0:128", 0.19},
                                   {"bf16", 1.7e-3},
                                   {"sign", 0.60}};
  for (const Loss& loss : table) {
    expect_loss(loss.codec, relative_error(x, round_trip(*make_codec(loss.codec), x)), loss.error);
  }
}

TEST(CodecError, OfZfpShrinksWhereItDoesNotTruncate) {
  const Floats x = gaussian(1 << 16, 72);
  for (const int columns : {1, 4}) {
    for (const int rate : {6, 8, 12, 16}) {
      const std::string name = fmt::format("zfp:{}:{}", rate, columns);
      const double rounded = relative_error(x, round_trip(*make_codec(name), x));
      const double truncated = relative_error(x, round_trip(*make_codec(name + ":truncate"), x));
      EXPECT_NEAR(rounded / truncated, 0.86, 0.03) << name;
    }
  }
}

/// The sum of as many tensors as ranks, exchanged by the direct form: each rank encodes its own,
/// the pieces of one owner are decoded and added in the order of ranks, and the sum is encoded once
/// more.
Floats direct_sum(const Codec& codec, const std::vector<Floats>& tensors) {
  const std::size_t n = tensors[0].size(), ranks = tensors.size();
  const auto piece = static_cast<std::int64_t>((n + ranks - 1) / ranks);
  std::vector<Bytes> sent;
  for (const Floats& x : tensors) sent.push_back(encode(codec, x, {.piece = piece}).bytes);
  Floats result;
  std::size_t at = 0;
  for (std::size_t first = 0; first < n; first += static_cast<std::size_t>(piece)) {
    const std::size_t count = std::min(static_cast<std::size_t>(piece), n - first);
    const std::size_t size = codec.encoded_bytes(static_cast<std::int64_t>(count));
    Floats sum;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto begin = sent[rank].begin() + static_cast<std::ptrdiff_t>(at);
      const Bytes bytes(begin, begin + static_cast<std::ptrdiff_t>(size));
      sum = rank == 0 ? decode(codec, bytes, count) : decode_add(codec, bytes, sum);
    }
    const Floats decoded = round_trip(codec, sum);
    result.insert(result.end(), decoded.begin(), decoded.end());
    at += size;
  }
  return result;
}

TEST(CodecError, OfTheDirectSumDoesNotGrowWithTheRanks) {
  constexpr std::size_t kRanks[] = {2, 8, 32, 64}, kValues = 1 << 14;
  struct Row {
    std::string codec;
    double errors[std::size(kRanks)];
  };
  // Those that truncate are not independent of each other, and grow a little.
  const std::vector<Row> table = {{"bf16", {.0024, .0023, .0023, .0023}},
                                  {"int8:128", {.009, .009, .009, .009}},
                                  {"int4:128", {.166, .166, .166, .166}},
                                  {"fp8:128", {.036, .036, .036, .036}},
                                  {"zfp:8:4:truncate", {.026, .026, .028, .030}},
                                  {"zfp:8:1:truncate", {.081, .083, .093, .103}},
                                  {"zfp:8:1", {.067, .066, .066, .066}}};
  std::vector<Floats> tensors;
  for (std::size_t i = 0; i < std::size(kRanks); ++i) {
    while (tensors.size() < kRanks[i]) tensors.push_back(gaussian(kValues, 80 + tensors.size()));
    Floats exact(kValues);
    for (const Floats& x : tensors) {
      for (std::size_t at = 0; at < kValues; ++at) exact[at] += x[at];
    }
    for (const auto& [codec, errors] : table) {
      expect_loss(fmt::format("{} on {} ranks", codec, kRanks[i]),
                  relative_error(exact, direct_sum(*make_codec(codec), tensors)), errors[i]);
    }
  }
}

}  // namespace
}  // namespace heddle::codec
