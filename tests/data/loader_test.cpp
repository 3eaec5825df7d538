#include "data/loader.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

std::vector<std::int32_t> ids(const Batch& batch) {
  const auto span = batch.ids_BS.host<std::int32_t>();
  return {span.begin(), span.end()};
}

class LoaderTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  Memory memory_;
  Dataset dataset_{
      {.sources = {{write_counting_file(folder_ / "a.tok", {600}), 1.0}}, .seq_len = 8, .seed = 1}};
  BatchPlan plan_{.samples_per_step = 6, .rows_per_batch = 2, .batches_per_step = 3};
};

TEST_F(LoaderTest, PrefetchedBatchesEqualPureOnes) {
  for (const std::int64_t ahead : {0, 1, 2, 5}) {
    Loader loader(dataset_, plan_, memory_, 0, ahead);
    for (std::int64_t step = 0; step < 20; ++step) {
      for (std::int64_t m = 0; m < 3; ++m) {
        ASSERT_EQ(ids(loader.next()), ids(loader.batch(step, m)));
      }
    }
    EXPECT_GE(loader.take_wait_seconds(), 0.0);
    EXPECT_EQ(loader.take_wait_seconds(), 0.0);
  }
}

TEST_F(LoaderTest, ContinuesFromAStepAlone) {
  Loader from_start(dataset_, plan_, memory_, 0), resumed(dataset_, plan_, memory_, 4);
  for (int i = 0; i < 4 * 3; ++i) from_start.next();
  for (int i = 0; i < 9; ++i) EXPECT_EQ(ids(from_start.next()), ids(resumed.next()));
}

TEST_F(LoaderTest, RanksTogetherReadWhatOneRankReads) {
  Loader one(dataset_, plan_, memory_, 7);
  std::vector<std::int32_t> together;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const BatchPlan part{.samples_per_step = 6,
                         .first_in_step = 2 * rank,
                         .rows_per_batch = 1,
                         .batches_per_step = 2};
    Loader loader(dataset_, part, memory_, 7);
    for (int m = 0; m < 2; ++m) {
      const auto row = ids(loader.next());
      together.insert(together.end(), row.begin(), row.end());
    }
  }
  std::vector<std::int32_t> alone;
  for (int m = 0; m < 3; ++m) {
    const auto rows = ids(one.next());
    alone.insert(alone.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(together, alone);
}

TEST_F(LoaderTest, HandsOverTheReadersError) {
  std::string bytes = read_text_file(folder_ / "a.tok");
  bytes[64 + 2 * 300 + 1] = '\x7f';  // one token out of range
  write_bytes(folder_ / "bad.tok", bytes);
  const Dataset dataset({.sources = {{folder_ / "bad.tok", 1.0}}, .seq_len = 8, .seed = 1});
  Loader loader(dataset, plan_, memory_, 0);
  const Error error = error_of([&] {
    for (int i = 0; i < 100; ++i) loader.next();
  });
  EXPECT_TRUE(contains(error.what(), "outside the vocabulary")) << error.what();
}

TEST_F(LoaderTest, CountsItsBuffersAsData) {
  const Batch batch = dataset_.batch(0, 4, memory_);
  EXPECT_EQ(memory_.stats().live[static_cast<std::size_t>(MemoryTag::data)],
            4 * Memory::rounded_bytes(4 * 8 * sizeof(std::int32_t)));
}

}  // namespace
}  // namespace heddle
