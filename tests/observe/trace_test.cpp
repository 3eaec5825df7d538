#include "observe/trace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

TEST(Trace, GivesAProcessPerRankAThreadPerStreamAndMicroseconds) {
  Trace trace;
  trace.name_stream(1, 2, "communication");
  trace.add({"F\"0\"\xFF", "action", 0, 0, 0.5, 0.25});
  trace.add({"all_reduce", "collective", 1, 2, 0.75, 0.125});
  const TemporaryFolder folder;
  trace.write(folder.path() / "trace.json");
  const Json events = read_json_file(folder.path() / "trace.json")["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["args"]["name"], "rank 0");
  EXPECT_EQ(events[1]["args"]["name"], "rank 1");
  EXPECT_EQ(events[2]["name"], "thread_name");
  EXPECT_EQ(events[2]["tid"], 2);
  EXPECT_EQ(events[3]["ph"], "X");
  EXPECT_EQ(events[3]["ts"], 500000.0);
  EXPECT_EQ(events[3]["dur"], 250000.0);
  EXPECT_EQ(events[4]["pid"], 1);
  EXPECT_EQ(events[4]["cat"], "collective");
}

TEST(Trace, WithoutSpansIsStillAValidFile) {
  EXPECT_EQ(parse_json(Trace().json(), "trace")["traceEvents"].size(), 0u);
}

TEST(Trace, NamesAFileItCannotWrite) {
  EXPECT_THROW(Trace().write("/nonexistent-folder/trace.json"), Error);
}

}  // namespace
}  // namespace heddle::observe
