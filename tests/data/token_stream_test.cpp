#include "data/token_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "data/loader.h"
#include "data/test_files.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

constexpr std::int32_t kEnd = 256;

/// Bytes as tokens; can be made slow, held up at a text, or to fail there.
struct SlowEncoder {
  std::atomic<int> calls = 0;
  std::atomic<bool> is_held = false;
  std::string slow, held;

  std::function<EncodeText()> factory() {
    return [this] {
      return [this](std::string_view text, bool, std::vector<std::int32_t>& out) {
        ++calls;
        const auto has = [&](const std::string& part) {
          return !part.empty() && text.find(part) != std::string_view::npos;
        };
        if (has(slow)) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        while (is_held && has(held)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (const char c : text) out.push_back(static_cast<unsigned char>(c));
      };
    };
  }
};

class TokenStreamTest : public testing::Test {
 protected:
  TokenStreamTest() {
    for (const int file : {0, 1, 2}) {
      std::string lines;  // each file is two blocks
      for (int i = 0; i < 1500; ++i) {
        lines +=
            fmt::format("{{\"text\": \"file {} line {} {}\"}}\n", file, i, std::string(200, 'x'));
      }
      write_bytes(folder_ / fmt::format("in/{}.jsonl", file), lines);
    }
  }

  std::shared_ptr<TokenStream> stream(SlowEncoder& encoder, const char* out, int threads = 1,
                                      bool is_maker = true) {
    const TokenizeOptions options{.inputs = {folder_ / "in"},
                                  .out = folder_ / out,
                                  .origin = {257, 42},
                                  .end_token = kEnd,
                                  .threads = threads};
    return std::make_shared<TokenStream>(real_file_system(), options, encoder.factory(), is_maker);
  }
  static Dataset dataset(const std::shared_ptr<TokenStream>& stream) {
    return Dataset({.sources = {{.file = {}, .name = "in", .shards = stream}},
                    .seq_len = 64,
                    .seed = 5,
                    .holdout = 0.1});
  }
  std::vector<std::int32_t> ids(const Dataset& data, std::int64_t first, std::int64_t rows) {
    const Batch batch = data.batch(first, rows, memory_);
    std::vector<std::int32_t> out;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto span = batch.ids_BS.select(0, row).host<std::int32_t>();
      out.insert(out.end(), span.begin(), span.end());
    }
    return out;
  }

  TemporaryFolder folder_;
  Memory memory_;
};

TEST_F(TokenStreamTest, SamplesDoNotDependOnThePaceOfTokenizing) {
  SlowEncoder quick, slow;
  slow.slow = "line 700 ";
  const Dataset first = dataset(stream(quick, "quick"));
  const auto expected = ids(first, 0, 16000);
  EXPECT_GT(first.train_windows(), 10000) << "the end was met";
  EXPECT_LT(first.train_windows(), 16000) << "and a second epoch begun";
  for (const int threads : {1, 4}) {
    const std::string out = fmt::format("slow-{}", threads);
    EXPECT_EQ(ids(dataset(stream(slow, out.c_str(), threads)), 0, 16000), expected) << threads;
  }
}

TEST_F(TokenStreamTest, TrainsBeforeLaterTextIsTokenized) {
  SlowEncoder encoder;
  encoder.held = "file 2 ";
  encoder.is_held = true;
  const Dataset data = dataset(stream(encoder, "out"));
  EXPECT_EQ(ids(data, 0, 4000).size(), 4000U * 64);  // of files 0 and 1
  EXPECT_EQ(data.train_windows(), 0) << "its end is not known";
  encoder.is_held = false;
  ids(data, 16000, 1);
  EXPECT_GT(data.train_windows(), 10000);
}

TEST_F(TokenStreamTest, EveryWindowComesOnceInAnEpoch) {
  SlowEncoder encoder;
  const auto shards = stream(encoder, "out");
  const Dataset data = dataset(shards);
  ids(data, 20000, 1);
  const std::int64_t windows = data.train_windows();
  std::int64_t sample = 0;
  for (std::size_t shard = 0; const auto file = shards->shard(shard, {}); ++shard) {
    const std::int64_t tokens = shard == 0 ? data.splits(0).train.size() : file->token_count();
    std::set<std::int64_t> begins;
    for (std::int64_t i = 0; i < (tokens - 1) / 64; ++i) {
      const SampleOrigin origin = data.sample(sample++);
      EXPECT_EQ(origin.epoch, 0);
      EXPECT_LE(origin.begin + 65, tokens);
      EXPECT_TRUE(begins.insert(origin.begin).second) << "shard " << shard << " window " << i;
    }
  }
  EXPECT_EQ(sample, windows);
  EXPECT_NE(ids(data, 0, windows), ids(data, windows, windows)) << "another shuffle";
  EXPECT_EQ(data.sample(windows).epoch, 1);
}

TEST_F(TokenStreamTest, GoesOnWhereItWasInterrupted) {
  SlowEncoder encoder;
  const auto expected = ids(dataset(stream(encoder, "whole")), 3000, 6000);
  encoder.calls = 0;
  encoder.held = "file 1 line 1400 ";
  encoder.is_held = true;
  {
    const auto shards = stream(encoder, "out");
    const Dataset data = dataset(shards);
    ids(data, 0, 2000);
    encoder.is_held = false;  // so that it can stop
  }
  encoder.calls = 0;
  EXPECT_EQ(ids(dataset(stream(encoder, "out")), 3000, 6000), expected);
  EXPECT_LT(encoder.calls, 3500);
  encoder.calls = 0;
  EXPECT_EQ(ids(dataset(stream(encoder, "out", 1, false)), 3000, 6000), expected) << "finds them";
  EXPECT_EQ(encoder.calls, 0);
}

TEST_F(TokenStreamTest, OthersFindWhatOneMakes) {
  SlowEncoder encoder, none;
  const auto maker = stream(encoder, "out");
  const Dataset own = dataset(maker), other = dataset(stream(none, "out", 1, false));
  EXPECT_EQ(ids(other, 0, 8000), ids(own, 0, 8000));
  EXPECT_EQ(none.calls, 0);
}

TEST_F(TokenStreamTest, ChangedInputsAreAnotherStream) {
  SlowEncoder encoder;
  const auto before = ids(dataset(stream(encoder, "out")), 0, 100);
  write_bytes(folder_ / "in/0.jsonl", "{\"text\": \"" + std::string(50000, 'y') + "\"}\n");
  EXPECT_NE(ids(dataset(stream(encoder, "out")), 0, 100), before);
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    folders += entry.path().filename().string().starts_with("out.stream-");
  }
  EXPECT_EQ(folders, 1) << "the other is gone";
}

TEST_F(TokenStreamTest, FaultsAreSaidWhenTheyAreReached) {
  write_bytes(folder_ / "in/9.jsonl", "{\"text\": \"good\"}\n{\"body\": 1}\n");
  SlowEncoder encoder;
  const Dataset data = dataset(stream(encoder, "out"));
  EXPECT_EQ(ids(data, 0, 5000).size(), 5000U * 64);
  const Error error = error_of([&] { ids(data, 0, 20000); });
  EXPECT_TRUE(contains(error.message(), "9.jsonl:2: no field \"text\"")) << error.what();
}

TEST_F(TokenStreamTest, ALoaderThatWaitsCanBeLeft) {
  SlowEncoder encoder;
  encoder.held = "file 1 ";
  encoder.is_held = true;
  const auto shards = stream(encoder, "out");
  const Dataset data = dataset(shards);
  {
    Loader loader(data, {.samples_per_step = 8000, .rows_per_batch = 8000, .batches_per_step = 1},
                  memory_, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }  // hangs here if it cannot
  encoder.is_held = false;
}

}  // namespace
}  // namespace heddle
