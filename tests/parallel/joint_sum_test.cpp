#include "parallel/exchange/joint_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/rng.h"
#include "codec/registry.h"
#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

using Values = std::vector<float>;

/// Fewer than ranks, not a whole number of bytes, one that has several tiles.
const std::vector<std::int64_t> kSizes = {1, 3, 7, 64, 513, 9001};

Values drawn(int rank, int step, std::size_t tensor) {
  Values values;
  const std::uint64_t key =
      rng_key(static_cast<std::uint64_t>(1000 * step + 10 * rank) + tensor, "joint");
  for (std::int64_t i = 0; i < kSizes[tensor]; ++i) {
    values.push_back(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(i))));
  }
  return values;
}

Values values_of(const Tensor& tensor) {
  const auto all = tensor.host<float>();
  return {all.begin(), all.end()};
}

/// One rank's tensors and books.
struct JointRank {
  JointRank(const codec::Codec& codec, World& world)
      : sum(codec, world.all(), kSizes, memory), rank(world.rank()) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      tensors.push_back(memory.zeros({kSizes[i]}, DType::f32, MemoryTag::workspace));
      books.push_back(
          {memory.zeros({kSizes[i]}, DType::f32, MemoryTag::workspace),
           memory.zeros({sum.chunks().chunk(i, rank).count()}, DType::f32, MemoryTag::workspace)});
    }
    guard = memory.alloc({1}, DType::f32, MemoryTag::workspace);
    guard.host<float>()[0] = 1.0F;
  }
  void fill(int step) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      std::ranges::copy(drawn(rank, step, i), tensors[i].host<float>().begin());
    }
  }
  void run() { sum.sum(tensors, books, guard, stream); }

  Memory memory;
  Stream stream{1};
  JointSum sum;
  int rank;
  std::vector<Tensor> tensors;
  std::vector<JointSum::Books> books;
  Tensor guard;
};

/// The same in one place: tensors after so many steps, as all ranks have them.
std::vector<Values> expected_after(int ranks, int steps) {
  const auto encode = [](Values& x, Values& error) {
    double magnitude = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) magnitude += std::abs(x[i] += error[i]);
    const auto scale = static_cast<float>(magnitude / static_cast<double>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float made = x[i] >= 0.0F ? scale : -scale;
      error[i] = x[i] - made;
      x[i] = made;
    }
  };
  std::vector<Values> sums(kSizes.size());
  for (std::size_t tensor = 0; tensor < kSizes.size(); ++tensor) {
    const auto count = static_cast<std::size_t>(kSizes[tensor]);
    const auto all = static_cast<std::size_t>(ranks);
    std::vector<Values> worker(all, Values(count, 0.0F)), server(all, Values(count, 0.0F));
    for (int step = 0; step < steps; ++step) {
      Values sum(count, 0.0F);
      for (int rank = 0; rank < ranks; ++rank) {
        Values x = drawn(rank, step, tensor);
        encode(x, worker[static_cast<std::size_t>(rank)]);
        for (std::size_t i = 0; i < count; ++i) sum[i] = rank == 0 ? x[i] : sum[i] + x[i];
      }
      const std::size_t each = (count + all - 1) / all;
      for (std::size_t begin = 0, rank = 0; begin < count; begin += each, ++rank) {
        const std::size_t end = std::min(count, begin + each);
        Values chunk(sum.begin() + static_cast<std::ptrdiff_t>(begin),
                     sum.begin() + static_cast<std::ptrdiff_t>(end));
        server[rank].resize(chunk.size());
        encode(chunk, server[rank]);
        std::ranges::copy(chunk, sum.begin() + static_cast<std::ptrdiff_t>(begin));
      }
      sums[tensor] = sum;
    }
  }
  return sums;
}

TEST(JointSum, OfAnyNumberOfRanksIsThatOfOnePlaceOnAllOfThem) {
  const auto codec = codec::make_codec("sign");
  for (const int ranks : {1, 2, 3, 4}) {
    const auto expected = expected_after(ranks, 3);
    std::mutex mutex;
    run_ranks(ranks, [&](World& world) {
      JointRank own(*codec, world);
      for (int step = 0; step < 3; ++step) {
        own.fill(step);
        own.run();
      }
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const Values made = values_of(own.tensors[i]);
        for (std::size_t j = 0; j < made.size(); ++j) {
          ASSERT_NEAR(made[j], expected[i][j], 1e-5F * std::abs(expected[i][j]))
              << ranks << " ranks, tensor " << i << " at " << j;
        }
      }
    });
  }
}

TEST(JointSum, LosesNothingThatIsNotInItsBooks) {
  const auto codec = codec::make_codec("sign");
  constexpr int kRanks = 3, kSteps = 4;
  std::vector<std::vector<double>> given, made;  // by tensor, over all steps
  for (const std::int64_t size : kSizes) {
    given.emplace_back(static_cast<std::size_t>(size), 0.0);
    made.emplace_back(static_cast<std::size_t>(size), 0.0);
  }
  std::mutex mutex;
  run_ranks(kRanks, [&](World& world) {
    JointRank own(*codec, world);
    for (int step = 0; step < kSteps; ++step) {
      own.fill(step);
      const std::vector<Tensor>& tensors = own.tensors;
      {
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          for (std::size_t j = 0; j < given[i].size(); ++j) given[i][j] += values_of(tensors[i])[j];
        }
      }
      own.run();
      if (world.rank() != 0) continue;
      const std::lock_guard lock(mutex);  // others may have come to their books
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        for (std::size_t j = 0; j < made[i].size(); ++j) made[i][j] += values_of(tensors[i])[j];
      }
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const Values worker = values_of(own.books[i].worker), server = values_of(own.books[i].server);
      for (std::size_t j = 0; j < worker.size(); ++j) made[i][j] += worker[j];
      const auto begin = static_cast<std::size_t>(own.sum.chunks().chunk(i, own.rank).begin);
      for (std::size_t j = 0; j < server.size(); ++j) made[i][begin + j] += server[j];
    }
  });
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    for (std::size_t j = 0; j < given[i].size(); ++j) EXPECT_NEAR(made[i][j], given[i][j], 1e-4);
  }
}

TEST(JointSum, TakesTwoCallsOfAsManyBytesAsItsChunksSay) {
  const auto codec = codec::make_codec("sign");
  run_ranks(3, [&](World& world) {
    JointRank own(*codec, world);
    const CommCounts before = world.all().counts();
    own.fill(0);
    own.run();
    const auto count = [&](CommOp op) {
      CommCounts::Entry now = world.all().counts().by_op[static_cast<std::size_t>(op)];
      now.calls -= before.by_op[static_cast<std::size_t>(op)].calls;
      now.payload_bytes -= before.by_op[static_cast<std::size_t>(op)].payload_bytes;
      return now;
    };
    EXPECT_EQ(count(CommOp::all_to_all).calls, 1);
    EXPECT_EQ(count(CommOp::all_gather).calls, 1);
    EXPECT_EQ(count(CommOp::all_to_all).payload_bytes, own.sum.chunks().dealt_bytes());
    EXPECT_EQ(count(CommOp::all_gather).payload_bytes, own.sum.chunks().gathered_bytes());
    std::int64_t values = 0;
    for (const std::int64_t size : kSizes) values += size;
    // A bit for each, and for each chunk a scale and what is left of its last byte.
    EXPECT_LE(own.sum.chunks().dealt_bytes(),
              values / 8 + static_cast<std::int64_t>(3 * kSizes.size()) * 5);
  });
}

TEST(JointSum, LeavesItsBooksWhereTheGuardIsNotFinite) {
  const auto codec = codec::make_codec("sign");
  std::mutex mutex;
  run_ranks(2, [&](World& world) {
    JointRank own(*codec, world);
    own.fill(0);
    own.run();
    std::vector<Values> books;
    for (const auto& [worker, server] : own.books) {
      books.push_back(values_of(worker));
      books.push_back(values_of(server));
    }
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    own.guard.host<float>()[0] = kNan;
    for (const Tensor& tensor : own.tensors) std::ranges::fill(tensor.host<float>(), kNan);
    own.run();
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < own.books.size(); ++i) {
      EXPECT_EQ(values_of(own.books[i].worker), books[2 * i]);
      EXPECT_EQ(values_of(own.books[i].server), books[2 * i + 1]);
    }
  });
}

}  // namespace
}  // namespace heddle
