#include "train/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::string refusal(const fs::path& folder) {
  try {
    const RunLock lock(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    return error.what();
  }
  return "";
}

void leave_line(const fs::path& folder, const std::string& line) {
  write_file_atomically(real_file_system(), folder / "heddle.lock", line + "\n");
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

TEST(RunLock, KeepsOthersOutWhileItLivesAndLeavesNothing) {
  const TemporaryFolder parent;
  const fs::path folder = parent.path() / "run";
  auto lock = std::make_unique<RunLock>(folder);
  const std::string message = refusal(folder);
  EXPECT_NE(message.find(fmt::format("{} is in use by process {} on {} since ", folder.string(),
                                     ::getpid(), host_name())),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("set run.dir"), std::string::npos) << message;
  lock.reset();
  EXPECT_FALSE(fs::exists(folder)) << "it was made for the lock and stayed empty";
  EXPECT_EQ(refusal(folder), "");
}

TEST(RunLock, LeavesAFolderThatIsNotEmpty) {
  const TemporaryFolder folder;
  write_file_atomically(real_file_system(), folder.path() / "kept", "x");
  EXPECT_EQ(refusal(folder.path()), "");
  EXPECT_TRUE(fs::exists(folder.path() / "kept"));
  EXPECT_FALSE(fs::exists(folder.path() / "heddle.lock"));
}

TEST(RunLock, OfTheSameRunIsTakenOverWhateverItsHolderDoes) {
  const TemporaryFolder folder;
  auto frozen = std::make_unique<RunLock>(folder.path());
  EXPECT_NE(refusal(folder.path()), "");
  const RunLock next(folder.path(), {"a text of before", frozen->text()});
  EXPECT_NE(next.text(), frozen->text());
  frozen.reset();
  EXPECT_EQ(lock_text(folder.path()), next.text()) << "the one before took it along";
  EXPECT_NE(refusal(folder.path()), "");
}

TEST(RunLock, TakesOverFromAProcessOfThisMachineThatIsGone) {
  const TemporaryFolder folder;
  leave_line(folder.path(), fmt::format("process {} on {} since yesterday", ::getpid(),
                                        host_name()));  // the number may be in use again
  EXPECT_EQ(refusal(folder.path()), "");
}

TEST(RunLock, OfAnotherMachineIsRefusedWithHowToRemoveIt) {
  const TemporaryFolder folder;
  leave_line(folder.path(), "process 12 on elsewhere.example since 2026-01-31 12:00:00 UTC");
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("process 12 on elsewhere.example since 2026-01-31"), std::string::npos);
  EXPECT_NE(message.find("remove " + (folder.path() / "heddle.lock").string()), std::string::npos)
      << message;
  EXPECT_TRUE(fs::exists(folder.path() / "heddle.lock"));
}

TEST(RunLock, DoesNotReplaceAFileThatIsNoLock) {
  const TemporaryFolder folder;
  leave_line(folder.path(), "my notes");
  EXPECT_NE(refusal(folder.path()).find("not a lock that heddle wrote"), std::string::npos);
  EXPECT_EQ(read_text_file(folder.path() / "heddle.lock"), "my notes\n");
}

TEST(RunFolderInUse, IsRefusedAlsoWithFresh) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const auto state = tensors_of(run.checkpoint(10));
  const RunLock held(run.run_folder());
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--fresh"}, {"--fresh", "--ranks", "2"}}) {
    const Outcome outcome = run.train({}, flags);
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(fmt::format("in use by process {} on ", ::getpid())),
              std::string::npos)
        << outcome.err;
    EXPECT_EQ(outcome.err.find("error: "), outcome.err.rfind("error: ")) << "said once";
  }
  EXPECT_TRUE(tensors_of(run.checkpoint(10)) == state);
  EXPECT_FALSE(fs::exists(run.run_folder() / "flight"));
}

TEST(RunFolderInUse, ByAKilledRunIsTakenOver) {
  const TinyRun run;
  const Outcome killed = run.train({"train.steps=2000", "checkpoint.every=2"}, {},
                                   {.signal = SIGKILL, .signal_at = "step 2: checkpoint durable"});
  ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
  ASSERT_TRUE(fs::exists(run.run_folder() / "heddle.lock"));
  const Outcome next = run.train({}, {"--fresh"});
  EXPECT_EQ(next.status, 0) << next.err;
  EXPECT_NE(next.err.find("took over"), std::string::npos) << next.err;
  EXPECT_FALSE(fs::exists(run.run_folder() / "heddle.lock"));
}

}  // namespace
}  // namespace heddle
