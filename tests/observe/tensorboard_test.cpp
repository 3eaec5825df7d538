#include "observe/sinks/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file_system.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

// A reader written from the format's description, sharing nothing with the writer but crc32c.
struct Reader {
  std::string_view bytes;

  template <class T>
  T raw() {
    T value{};
    if (bytes.size() < sizeof value) throw std::runtime_error("truncated");
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = raw<std::uint8_t>();
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view take(std::size_t size) {
    if (bytes.size() < size) throw std::runtime_error("truncated");
    const auto part = bytes.substr(0, size);
    bytes.remove_prefix(size);
    return part;
  }
};

struct DecodedEvent {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  int session_status = 0;
  std::map<std::string, float> scalars;
};

void decode_value(std::string_view bytes, DecodedEvent& event) {
  Reader reader{bytes};
  std::string tag;
  while (!reader.bytes.empty()) {
    const auto key = reader.varint();
    if (key == (1 << 3 | 2)) tag = reader.take(reader.varint());
    if (key == (2 << 3 | 5)) event.scalars[tag] = reader.raw<float>();
  }
}

DecodedEvent decode_event(std::string_view bytes) {
  DecodedEvent event;
  Reader reader{bytes};
  while (!reader.bytes.empty()) {
    switch (reader.varint()) {
      case 1 << 3 | 1: event.wall_time = reader.raw<double>(); break;
      case 2 << 3 | 0: event.step = static_cast<std::int64_t>(reader.varint()); break;
      case 3 << 3 | 2: event.file_version = reader.take(reader.varint()); break;
      case 5 << 3 | 2: {
        Reader summary{reader.take(reader.varint())};
        while (!summary.bytes.empty()) {
          EXPECT_EQ(summary.varint(), 1u << 3 | 2u);
          decode_value(summary.take(summary.varint()), event);
        }
        break;
      }
      case 7 << 3 | 2: {
        Reader log{reader.take(reader.varint())};
        EXPECT_EQ(log.varint(), 1u << 3);
        event.session_status = static_cast<int>(log.varint());
        break;
      }
      default: throw std::runtime_error("unknown field");
    }
  }
  return event;
}

std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t rotated = masked - 0xA282EAD8U;
  return std::rotl(rotated, 15);
}

std::vector<DecodedEvent> decode_file(const std::filesystem::path& path) {
  const std::string content = read_text_file(path);
  std::vector<DecodedEvent> events;
  Reader reader{content};
  while (!reader.bytes.empty()) {
    const auto header = reader.bytes.substr(0, 8);
    const auto length = reader.raw<std::uint64_t>();
    EXPECT_EQ(unmasked(reader.raw<std::uint32_t>()), crc32c(header));
    const auto payload = reader.take(length);
    EXPECT_EQ(unmasked(reader.raw<std::uint32_t>()), crc32c(payload));
    events.push_back(decode_event(payload));
  }
  return events;
}

TEST(TensorBoardSink, WritesScalarsThatReadBack) {
  const TemporaryFolder folder;
  TensorBoardSink sink(folder.path(), std::nullopt);
  EXPECT_EQ(sink.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
  StepMetrics m;
  m.step = 300;
  m.loss = 3.5;
  m.grad_norm = 0.75;
  m.lr = 0.25;
  m.tokens_per_second = 1024;
  m.mfu = 0.5;
  m.memory_bytes = std::uint64_t{3} << 29;
  m.data_wait_seconds = 0.125;
  sink.on_step(m);
  m.mfu.reset();
  m.step = 301;
  sink.on_step(m);
  sink.on_eval(
      {.step = 301, .tokens = 1, .loss = 2.5, .perplexity = 12.2, .sources = {{"web", 1.5}}});
  sink.close();

  const auto events = decode_file(sink.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  EXPECT_EQ(events[1].step, 300);
  EXPECT_EQ(events[1].scalars, (std::map<std::string, float>{{"train/loss", 3.5f},
                                                             {"train/grad_norm", 0.75f},
                                                             {"train/lr", 0.25f},
                                                             {"perf/tokens_per_second", 1024.f},
                                                             {"perf/mfu", 0.5f},
                                                             {"memory/peak_gib", 1.5f},
                                                             {"time/data_wait_ms", 125.f}}));
  EXPECT_EQ(events[2].scalars.count("perf/mfu"), 0u);
  EXPECT_EQ(events[3].step, 301);
  EXPECT_EQ(events[3].scalars,
            (std::map<std::string, float>{{"eval/loss", 2.5f}, {"eval/loss/web", 1.5f}}));
}

TEST(TensorBoardSink, AResumedRunStartsANewFileThatPurgesLaterSteps) {
  const TemporaryFolder folder;
  TensorBoardSink first(folder.path(), std::nullopt);
  TensorBoardSink second(folder.path(), 40);
  EXPECT_NE(first.path(), second.path());
  const auto events = decode_file(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 41);
}

TEST(TensorBoardSink, NamesTheFileItCannotCreate) {
  EXPECT_THROW(TensorBoardSink("/nonexistent-folder", std::nullopt), Error);
}

}  // namespace
}  // namespace heddle::observe
