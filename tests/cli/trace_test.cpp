#include "observe/trace.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "base/json.h"
#include "cli/run_program.h"
#include "support/temporary_folder.h"

namespace heddle::cli {
namespace {

namespace fs = std::filesystem;

class TraceVerb : public ::testing::Test {
 protected:
  fs::path write(const char* name, double forward) const {
    observe::Trace trace;
    trace.add({"F0", "action", 0, 0, 0.0, forward});
    trace.add({"step", "action", 0, 0, forward, 0.5});
    trace.write(folder_.path() / name);
    return folder_.path() / name;
  }

  TemporaryFolder folder_;
};

TEST_F(TraceVerb, ComparesTwoTracesWithTheLargestDifferenceFirst) {
  const Outcome outcome = run_heddle({"trace", write("a.json", 2.0).string(), "--compare",
                                      write("b.json", 1.0).string(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = parse_json(outcome.out, "trace --json");
  EXPECT_EQ(json["rows"][0]["kind"], "F");
  EXPECT_NEAR(json["rows"][0]["difference_seconds"].get<double>(), 1.0, 1e-6);
}

TEST_F(TraceVerb, SummarisesOneTrace) {
  const Outcome outcome = run_heddle({"trace", write("a.json", 2.0).string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("computing"), std::string::npos) << outcome.out;
}

TEST_F(TraceVerb, RefusesWhatIsNoTrace) {
  const auto refused = [](const fs::path& path, const char* says) {
    const Outcome outcome = run_heddle({"trace", path.string()});
    EXPECT_EQ(outcome.status, 5) << outcome.err;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
  };
  refused(folder_.path() / "absent.json", "absent.json");
  refused(folder_.path(), "observe.trace");  // a folder without one
  observe::Trace().write(folder_.path() / "empty.json");
  refused(folder_.path() / "empty.json", "no spans");
  write_file_atomically(real_file_system(), folder_.path() / "text.json", "hello");
  refused(folder_.path() / "text.json", "not valid JSON");
  EXPECT_EQ(run_heddle({"trace"}).status, 2);
}

}  // namespace
}  // namespace heddle::cli
