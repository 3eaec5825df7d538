#include "observe/epochs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file_system.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

class EpochsFile : public testing::Test {
 protected:
  std::filesystem::path file() const { return folder_.path() / "epochs.jsonl"; }
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const EpochRow& epoch : read_epochs(file())) numbers.push_back(epoch.number);
    return numbers;
  }
  const TemporaryFolder folder_;
};

TEST_F(EpochsFile, IsReadBackAsItWasRecorded) {
  record_epoch(file(), {.number = 0, .members = 4});
  record_epoch(file(), {.number = 1,
                        .step = 240,
                        .time = "2026-11-17T10:00:00Z",
                        .members = 3,
                        .spares = 1,
                        .mesh = "dp=1 tp=1 pp=2",
                        .cause = "rank 2 is gone",
                        .source = "stage 1 from its replica",
                        .detect = 0.5,
                        .agree = 0.25,
                        .rebuild = 2.0,
                        .restore = 0.125,
                        .redo = 1.0});
  const auto epochs = read_epochs(file());
  ASSERT_EQ(epochs.size(), 2U);
  EXPECT_EQ(to_json(epochs[1]).dump(),
            R"({"epoch":1,"step":240,"time":"2026-11-17T10:00:00Z","members":3,"spares":1,)"
            R"("mesh":"dp=1 tp=1 pp=2","cause":"rank 2 is gone","source":"stage 1 from its )"
            R"(replica","seconds":{"detect":0.5,"agree":0.25,"rebuild":2.0,"restore":0.125,)"
            R"("redo":1.0}})");
  EXPECT_EQ(epochs[0].members, 4);
}

TEST_F(EpochsFile, OfARunFromTheBeginningForgetsWhatWasBeforeAndThatOfOneThatGoesOnDoesNot) {
  record_epoch(file(), {.number = 0});
  record_epoch(file(), {.number = 1, .step = 10});
  record_epoch(file(), {.number = 0, .step = 10});
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{0, 1, 0}));
  record_epoch(file(), {.number = 0});
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{0}));
}

TEST_F(EpochsFile, LeavesOutWhatIsNoEpoch) {
  write_file_atomically(real_file_system(), file(), "{\"epoch\":1}\nnot json\n[]\n");
  record_epoch(file(), {.number = 2, .step = 10});
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{2}));
  EXPECT_THROW(record_epoch("/dev/null/epochs.jsonl", {}), Error);
}

TEST_F(EpochsFile, MayBeMissing) { EXPECT_TRUE(read_epochs(file()).empty()); }

}  // namespace
}  // namespace heddle::observe
