#include "parallel/exchange/compressed_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "codec/registry.h"
#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

using Values = std::vector<float>;

Values values_of(const Tensor& tensor) {
  const auto all = tensor.host<float>();
  return {all.begin(), all.end()};
}

Values random_values(int rank, int step, std::int64_t count) {
  Values values;
  const std::uint64_t key = rng_key(static_cast<std::uint64_t>(100 * step + rank), "sum");
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(i))));
  }
  return values;
}

/// One rank's tensors and books.
class Rank {
 public:
  Rank(const codec::Codec& codec, World& world, std::int64_t count, bool has_residuals)
      : sum_(codec::make_codec(codec.name()), world.all(), memory_),
        rank_(world.rank()),
        whole(floats(count)),
        shard(floats(count / world.size())),
        books{.bad = zero()},
        of_part{.bad = zero()} {
    if (has_residuals) {
      books.residual = floats(count);
      of_part.residual = floats(count / world.size());
    }
  }

  void fill(int step) {
    std::ranges::copy(random_values(rank_, step, whole.count()), whole.host<float>().begin());
  }
  void sum() { sum_.sum(whole, books, of_part, stream_).end(stream_); }
  void begin_and_give_up() { static_cast<void>(sum_.sum(whole, books, of_part, stream_)); }
  void scatter() { sum_.scatter(whole, shard, books, stream_).end(stream_); }

 private:
  Tensor floats(std::int64_t count) {
    const Tensor made = memory_.alloc({count}, DType::f32, MemoryTag::workspace);
    std::ranges::fill(made.host<float>(), 0.0F);
    return made;
  }
  Tensor zero() {
    const Tensor made = memory_.alloc({1}, DType::i64, MemoryTag::workspace);
    made.host<std::int64_t>()[0] = 0;
    return made;
  }

  Memory memory_;
  Stream stream_{1};
  const CompressedSum sum_;
  const int rank_;

 public:
  const Tensor whole, shard;
  EncodingBooks books, of_part;
};

constexpr std::int64_t kCount = 8 * 9 * 5 * 7 * 11;  // divisible by 2 to 8, not into whole blocks

double relative_error(const Values& made, const std::vector<double>& exact) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    off += (made[i] - exact[i]) * (made[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(off / size);
}

std::vector<double> exact_sum(int ranks) {
  std::vector<double> sum(kCount, 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Values values = random_values(rank, 0, kCount);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

TEST(CompressedSum, HasTheErrorOfTwoEncodingsWhateverTheNumberOfRanks) {
  const auto int8 = codec::make_codec("int8:128");
  for (const int ranks : {2, 3, 5, 8}) {
    const std::vector<double> exact = exact_sum(ranks);
    run_ranks(ranks, [&](World& world) {
      Rank rank(*int8, world, kCount, false);
      rank.fill(0);
      rank.sum();
      const double error = relative_error(values_of(rank.whole), exact);
      EXPECT_NEAR(error, 0.0092, 0.0006) << ranks << " ranks";
    });
  }
}

/// The table of the specification: relative errors of sums of Gaussian values.
TEST(CompressedSum, HasTheErrorsOfTheTableAndTheyAreFlatInTheNumberOfRanks) {
  struct Row {
    const char* codec;
    double error;
  };
  constexpr std::int64_t kValues = 32 * 512;
  for (const auto& [name, expected] :
       {Row{"bf16", 0.0024}, Row{"int8:128", 0.0092}, Row{"int4:128", 0.166},
        Row{"fp8:128", 0.0365}, Row{"zfp:8:1", 0.0665}}) {
    const auto codec = codec::make_codec(name);
    for (const int ranks : {2, 8, 32}) {
      std::vector<double> exact(kValues, 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Values values = random_values(rank, 0, kValues);
        for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += values[i];
      }
      run_ranks(ranks, [&](World& world) {
        Rank rank(*codec, world, kValues, false);
        rank.fill(0);
        rank.sum();
        if (world.rank() != ranks / 2) return;
        const double error = relative_error(values_of(rank.whole), exact);
        EXPECT_NEAR(error / expected, 1.0, 0.05) << name << " on " << ranks << " ranks";
      });
    }
  }
}

TEST(CompressedSum, IsScatteredWithTheErrorOfOne) {
  const auto int8 = codec::make_codec("int8:128");
  constexpr int kRanks = 4;
  const std::vector<double> exact = exact_sum(kRanks);
  run_ranks(kRanks, [&](World& world) {
    Rank rank(*int8, world, kCount, false);
    rank.fill(0);
    rank.scatter();
    const auto begin = exact.begin() + world.rank() * (kCount / kRanks);
    const std::vector<double> own(begin, begin + kCount / kRanks);
    EXPECT_NEAR(relative_error(values_of(rank.shard), own), 0.0065, 0.0005);
  });
}

/// The results of all ranks after some steps.
std::vector<Values> results(const codec::Codec& codec, int ranks, int steps, bool in_background) {
  std::vector<Values> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    world.all().run_in_background(in_background);
    Rank rank(codec, world, kCount, true);
    for (int step = 0; step < steps; ++step) {
      rank.fill(step);
      rank.sum();
    }
    all[static_cast<std::size_t>(world.rank())] = values_of(rank.whole);
  });
  return all;
}

bool have_same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CompressedSum, HasTheSameBitsOnAllRanksAndInTheBackground) {
  for (const char* name : {"int8:128", "int4:128", "e3m0:256", "sign", "topk:64:4096", "zfp:8:4"}) {
    const auto codec = codec::make_codec(name);
    const std::vector<Values> all = results(*codec, 3, 3, false);
    for (const Values& values : all) EXPECT_TRUE(have_same_bits(values, all.front())) << name;
    EXPECT_TRUE(have_same_bits(results(*codec, 3, 3, true).front(), all.front())) << name;
  }
}

/// A rank that is told of a loss gives up its sums; threads that carry them out may be at it still.
TEST(CompressedSum, ThatIsGivenUpLeavesNothingBehindForThreadsToUse) {
  const auto codec = codec::make_codec("int4:32");
  for (int trial = 0; trial < 20; ++trial) {
    run_ranks(2, [&](World& world) {
      world.all().run_in_background(true);
      auto rank = std::make_unique<Rank>(*codec, world, 4096, true);
      rank->fill(trial);
      rank->begin_and_give_up();
      rank.reset();
      world.all().run_in_background(false);  // waits for what is under way
    });
  }
}

TEST(CompressedSum, LosesNothingForEver) {
  constexpr int kRanks = 4, kSteps = 20;
  const auto sign = codec::make_codec("sign");
  std::vector<double> wanted(kCount, 0.0), got(kCount, 0.0);
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Values values = random_values(rank, step, kCount);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += values[i];
    }
  }
  std::vector<Values> residuals(kRanks), of_parts(kRanks);
  run_ranks(kRanks, [&](World& world) {
    Rank rank(*sign, world, kCount, true);
    for (int step = 0; step < kSteps; ++step) {
      rank.fill(step);
      rank.sum();
      if (world.rank() != 0) continue;
      const Values sum = values_of(rank.whole);
      for (std::size_t i = 0; i < got.size(); ++i) got[i] += sum[i];
    }
    residuals[static_cast<std::size_t>(world.rank())] = values_of(rank.books.residual);
    of_parts[static_cast<std::size_t>(world.rank())] = values_of(rank.of_part.residual);
  });
  for (std::size_t i = 0; i < got.size(); ++i) {
    for (const Values& residual : residuals) got[i] += residual[i];
    got[i] += of_parts[i / (kCount / kRanks)][i % (kCount / kRanks)];
    ASSERT_NEAR(got[i], wanted[i], 1e-4) << i;
  }
}

TEST(CompressedSum, SendsAsManyBytesAsTheCodecSays) {
  const auto int8 = codec::make_codec("int8:128");
  constexpr int kRanks = 5;
  run_ranks(kRanks, [&](World& world) {
    Rank rank(*int8, world, kCount, false);
    rank.sum();
    const auto bytes = static_cast<std::int64_t>(kRanks * int8->encoded_bytes(kCount / kRanks));
    const CommCounts& counts = world.all().counts();
    for (const CommOp op : {CommOp::all_to_all, CommOp::all_gather}) {
      EXPECT_EQ(counts.by_op[static_cast<std::size_t>(op)].calls, 1);
      EXPECT_EQ(counts.by_op[static_cast<std::size_t>(op)].wire_bytes, bytes);
      EXPECT_EQ(counts.by_op[static_cast<std::size_t>(op)].payload_bytes, 4 * kCount);
    }
    EXPECT_EQ(counts.by_op[static_cast<std::size_t>(CommOp::all_reduce)].calls, 0);
  });
}

TEST(CompressedSum, NotesWhatIsNotFiniteAndKeepsItsResidual) {
  const auto int8 = codec::make_codec("int8:128");
  run_ranks(2, [&](World& world) {
    Rank rank(*int8, world, kCount, true);
    rank.fill(0);
    if (world.rank() == 1) rank.whole.host<float>()[7] = INFINITY;
    rank.sum();
    Stream stream(1);
    EXPECT_EQ(codec::first_bad(rank.books.bad, stream).has_value(), world.rank() == 1);
    for (const float value : values_of(rank.whole)) ASSERT_TRUE(std::isfinite(value));
    for (const float value : values_of(rank.books.residual)) ASSERT_TRUE(std::isfinite(value));
  });
}

}  // namespace
}  // namespace heddle
