#include "observe/trace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file_system.h"
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

TEST(Trace, IsReadBackAsItWasWritten) {
  Trace trace;
  trace.name_stream(1, 2, "communication");
  trace.add({"F0", "action", 0, 0, 0.5, 0.25});
  trace.add({"all_reduce", "collective", 1, 2, 0.75, 0.125, 4096});
  const TemporaryFolder folder;
  trace.write(folder.path() / "trace.json");
  const Trace read = read_trace(folder.path() / "trace.json");
  ASSERT_EQ(read.spans().size(), 2u);
  EXPECT_EQ(read.spans()[0].name, "F0");
  EXPECT_EQ(read.spans()[0].bytes, 0u);
  EXPECT_DOUBLE_EQ(read.spans()[0].begin_seconds, 0.5);
  EXPECT_EQ(read.spans()[1].category, "collective");
  EXPECT_EQ(read.spans()[1].rank, 1);
  EXPECT_EQ(read.spans()[1].stream, 2);
  EXPECT_EQ(read.spans()[1].bytes, 4096u);
  EXPECT_DOUBLE_EQ(read.spans()[1].duration_seconds, 0.125);
  EXPECT_EQ(read.stream_names(), trace.stream_names());
  EXPECT_EQ(read.json(), trace.json());
}

TEST(Trace, ReadingPassesOverEventsOfOtherKinds) {
  const TemporaryFolder folder;
  write_file_atomically(real_file_system(), folder.path() / "other.json",
                        R"({"traceEvents":[{"ph":"i","name":"marker"},{"ph":"M","name":"x"}]})");
  EXPECT_TRUE(read_trace(folder.path() / "other.json").spans().empty());
}

TEST(Trace, ReadingNamesTheFileAndWhatIsWrong) {
  const TemporaryFolder folder;
  const auto message = [&](const char* content) {
    const auto path = folder.path() / "bad.json";
    write_file_atomically(real_file_system(), path, content);
    try {
      read_trace(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find("bad.json"), std::string::npos);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto says = [&](const char* content, const char* part) {
    EXPECT_NE(message(content).find(part), std::string::npos) << message(content);
  };
  says("[1,2", "not valid JSON");
  says("[]", "not a trace");
  says(R"({"traceEvents":7})", "not a trace");
  says(R"({"traceEvents":[3]})", "event 0 is not an object");
  says(R"({"traceEvents":[{"ph":"M"},{"ph":"X"}]})", "event 0 has no text 'name'");
  says(R"({"traceEvents":[{"ph":"X","name":"F0","pid":0,"tid":0,"dur":1}]})", "no number 'ts'");
  says(R"({"traceEvents":[{"ph":"X","name":"F0","pid":-1,"tid":0,"ts":0,"dur":1}]})", "'pid' = -1");
  says(R"({"traceEvents":[{"ph":"X","name":"F0","pid":0,"tid":0,"ts":0,"dur":-1}]})", "negative");
  EXPECT_THROW(read_trace(folder.path() / "absent.json"), Error);
}

TEST(Trace, WithoutSpansIsStillAValidFile) {
  EXPECT_EQ(parse_json(Trace().json(), "trace")["traceEvents"].size(), 0u);
}

TEST(Trace, NamesAFileItCannotWrite) { EXPECT_THROW(Trace().write("/dev/null/trace.json"), Error); }

}  // namespace
}  // namespace heddle::observe
