#include "data/tokenize.h"

#include <gtest/gtest.h>

#include <atomic>

#include "data/test_files.h"

namespace heddle {
namespace {

constexpr std::int32_t kEnd = 256;

/// Bytes as tokens; counts calls and can be made to fail at a text.
struct ByteEncoder {
  std::atomic<int> calls = 0;
  std::string poison;

  std::function<EncodeText()> factory() {
    return [this] {
      return [this](std::string_view text, bool, std::vector<std::int32_t>& out) {
        ++calls;
        if (!poison.empty() && text.find(poison) != std::string_view::npos) {
          fail(ErrorCode::resources, "interrupted at {}", poison);
        }
        for (const char c : text) out.push_back(static_cast<unsigned char>(c));
      };
    };
  }
};

/// The real file system with a disk that is full after so many bytes.
class SmallDisk : public FileSystem {
 public:
  explicit SmallDisk(std::size_t room) : room_(room) {}
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    return std::make_unique<File>(real_.create(path), room_);
  }
  std::unique_ptr<WritableFile> open(const std::filesystem::path& path) override {
    return std::make_unique<File>(real_.open(path), room_);
  }
  void create_directories(const std::filesystem::path& path) override {
    real_.create_directories(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    real_.rename(from, to);
  }
  void remove_all(const std::filesystem::path& path) override { real_.remove_all(path); }
  void sync_directory(const std::filesystem::path& path) override { real_.sync_directory(path); }
  std::uint64_t free_bytes(const std::filesystem::path&) override { return room_; }

 private:
  struct File : WritableFile {
    File(std::unique_ptr<WritableFile> file, std::atomic<std::size_t>& room)
        : file_(std::move(file)), room_(room) {}
    void append(std::span<const std::byte> bytes) override {
      if (bytes.size() > room_) fail(ErrorCode::resources, "no space left");
      room_ -= bytes.size();
      file_->append(bytes);
    }
    void write_at(std::uint64_t at, std::span<const std::byte> bytes) override {
      file_->write_at(at, bytes);
    }
    void sync() override { file_->sync(); }
    void close() override { file_->close(); }
    std::unique_ptr<WritableFile> file_;
    std::atomic<std::size_t>& room_;
  };
  FileSystem& real_ = real_file_system();
  std::atomic<std::size_t> room_;
};

class TokenizeTest : public testing::Test {
 protected:
  TokenizeTest() {
    std::string lines;  // several parts of 256 KiB
    for (int i = 0; i < 6000; ++i) {
      lines += fmt::format("{{\"text\": \"document {} {}\"}}\n", i, std::string(150, 'x'));
    }
    write_bytes(folder_ / "in.jsonl", lines);
    write_bytes(folder_ / "a.txt", "plain text");
  }

  TokenizeOptions options(const std::string& out, int threads = 2) {
    return {.inputs = {folder_ / "a.txt", folder_ / "in.jsonl"},
            .out = folder_ / out,
            .origin = {257, 42},
            .end_token = kEnd,
            .threads = threads};
  }
  TokenizeResult run(const TokenizeOptions& options) {
    return tokenize(real_file_system(), options, encoder_.factory());
  }

  TemporaryFolder folder_;
  ByteEncoder encoder_;
};

TEST_F(TokenizeTest, WritesDocumentsInOrderWithTheirEndToken) {
  const TokenizeResult result = run(options("out.tok"));
  EXPECT_EQ(result.documents, 6001);
  EXPECT_GE(result.parts, 4);
  const TokenFile file = TokenFile::open(folder_ / "out.tok", TokenFile::Check::content);
  EXPECT_EQ(file.token_count(), result.tokens);
  EXPECT_EQ(file.document_count(), 6001);
  EXPECT_EQ(file.header().tokenizer_fingerprint, 42U);
  std::vector<std::int32_t> tokens(24);
  file.read(0, tokens);
  EXPECT_EQ(std::string(tokens.begin(), tokens.begin() + 10), "plain text");
  EXPECT_EQ(tokens[10], kEnd);
  EXPECT_EQ(std::string(tokens.begin() + 11, tokens.end()), "document 0 xx");
  EXPECT_EQ(file.document_start(1), 11);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.tok.parts"));
}

TEST_F(TokenizeTest, OutputDoesNotDependOnThreads) {
  run(options("one.tok", 1));
  run(options("five.tok", 5));
  EXPECT_EQ(read_text_file(folder_ / "one.tok"), read_text_file(folder_ / "five.tok"));
}

TEST_F(TokenizeTest, GivesTheSameFileWhereverItsInputsLie) {
  run(options("here.tok"));
  write_bytes(folder_ / "deep/er/in.jsonl", read_text_file(folder_ / "in.jsonl"));
  write_bytes(folder_ / "deep/er/a.txt", read_text_file(folder_ / "a.txt"));
  auto there = options("there.tok");
  for (auto& input : there.inputs) {
    input = std::filesystem::relative(folder_ / "deep/er" / input.filename());
  }
  run(there);
  EXPECT_EQ(read_text_file(folder_ / "here.tok"), read_text_file(folder_ / "there.tok"));
}

TEST_F(TokenizeTest, ContinuesAfterAnInterruption) {
  run(options("whole.tok"));
  encoder_.poison = "document 4000 ";
  EXPECT_EQ(error_of([&] { run(options("out.tok")); }).message(), "interrupted at document 4000 ");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.tok"));
  encoder_.poison.clear();
  encoder_.calls = 0;
  const TokenizeResult result = run(options("out.tok"));
  EXPECT_GE(result.reused_parts, 2);
  EXPECT_LT(encoder_.calls, 4500);
  EXPECT_EQ(result.documents, 6001);
  EXPECT_EQ(read_text_file(folder_ / "out.tok"), read_text_file(folder_ / "whole.tok"));
}

TEST_F(TokenizeTest, DoesFinishedWorkAgainOnlyWhenSomethingChanged) {
  const auto first = run(options("out.tok"));
  encoder_.calls = 0;
  const auto again = run(options("out.tok"));
  EXPECT_TRUE(again.was_up_to_date);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(encoder_.calls, 0);

  auto other = options("out.tok");
  other.end_token.reset();
  EXPECT_EQ(run(other).tokens, first.tokens - first.documents);
  write_bytes(folder_ / "a.txt", "longer plain text");
  EXPECT_EQ(run(options("out.tok")).tokens, first.tokens + 7);
  std::filesystem::resize_file(folder_ / "out.tok", 100);
  EXPECT_FALSE(run(options("out.tok")).was_up_to_date);
}

TEST_F(TokenizeTest, DoesDamagedPartsAgain) {
  encoder_.poison = "document 4000 ";
  error_of([&] { run(options("out.tok", 1)); });
  const auto part = folder_ / "out.tok.parts/part-000000-000000.tok";
  ASSERT_TRUE(std::filesystem::exists(part));
  std::string bytes = read_text_file(part);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  write_bytes(part, bytes);
  write_bytes(folder_ / "out.tok.parts/part-000000-000001.json", "{nonsense");
  encoder_.poison.clear();
  run(options("out.tok"));
  run(options("whole.tok"));
  EXPECT_EQ(read_text_file(folder_ / "out.tok"), read_text_file(folder_ / "whole.tok"));
}

TEST_F(TokenizeTest, ReportsTheFirstFaultInInputOrderOrSkipsThem) {
  std::string lines = read_text_file(folder_ / "in.jsonl");
  const std::size_t middle = lines.find("{\"text\": \"document 2000 ");
  lines.insert(middle, "{\"body\": 1}\n");
  write_bytes(folder_ / "in.jsonl", lines + "{\"text\": \"\xff\"}\n{\"text\": \"\"}\n");
  for (const int threads : {1, 4}) {
    const Error error = error_of([&] { run(options("out.tok", threads)); });
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_TRUE(contains(error.what(), "in.jsonl:2001: no field \"text\"")) << error.what();
    EXPECT_TRUE(contains(error.what(), "--on-error skip")) << error.what();
  }
  auto skipping = options("out.tok");
  skipping.on_fault = OnFault::skip;
  const TokenizeResult result = run(skipping);
  EXPECT_EQ(result.skipped, 2);
  EXPECT_EQ(result.empty, 1);
  EXPECT_EQ(result.documents, 6001);
}

TEST_F(TokenizeTest, RefusesInputsWithoutText) {
  write_bytes(folder_ / "empty.txt", "");
  auto nothing = options("out.tok");
  nothing.inputs = {folder_ / "empty.txt"};
  const Error error = error_of([&] { run(nothing); });
  EXPECT_EQ(error.code(), ErrorCode::data);
  EXPECT_TRUE(contains(error.what(), "empty.txt")) << error.what();
}

TEST_F(TokenizeTest, LeavesByteOrderMarksOut) {
  write_bytes(folder_ / "mark.txt", "\xEF\xBB\xBFplain text");
  write_bytes(folder_ / "mark.jsonl", "\xEF\xBB\xBF{\"text\": \"document\"}\n");
  auto marked = options("out.tok");
  marked.inputs = {folder_ / "mark.txt", folder_ / "mark.jsonl"};
  const TokenizeResult result = run(marked);
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.tokens, 10 + 8 + 2);
}

TEST_F(TokenizeTest, NeverReplacesWhatItReadsOrDidNotWrite) {
  std::filesystem::create_symlink("in.jsonl", folder_ / "link");
  write_bytes(folder_ / "out.json", "{\"name\": \"mine\"}");
  write_bytes(folder_ / "new.tmp", "text");
  write_bytes(folder_ / "part.parts/notes.txt", "text");
  std::filesystem::create_directory(folder_ / "folder");
  const auto refuses = [&](const std::string& input, const std::string& out) {
    TokenizeOptions bad = options(out);
    bad.inputs = {folder_ / input};
    const Error error = error_of([&] { run(bad); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << input << " " << out << ": " << error.what();
  };
  const std::string text = read_text_file(folder_ / "in.jsonl");
  refuses("in.jsonl", "in.jsonl");
  refuses("in.jsonl", "folder/../in.jsonl");
  refuses("in.jsonl", "link");
  refuses("link", "in.jsonl");
  refuses("new.tmp", "new");
  refuses("a.txt", "out");
  refuses("a.txt", "folder");
  refuses("part.parts", "part");
  refuses("a.txt", "part");
  TokenizeOptions own = options("tokenizer");
  own.tokenizer = folder_ / "tokenizer.json";
  write_bytes(own.tokenizer, "{\"key\": 1, \"checksum\": 2}");
  EXPECT_EQ(error_of([&] { run(own); }).code(), ErrorCode::usage);
  EXPECT_EQ(read_text_file(folder_ / "in.jsonl"), text);
  EXPECT_EQ(read_text_file(folder_ / "out.json"), "{\"name\": \"mine\"}");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "part.parts/notes.txt"));
}

TEST_F(TokenizeTest, LosesNothingOnAFullDiskOrAFolderThatCannotBeMade) {
  write_bytes(folder_ / "file", "x");
  EXPECT_EQ(error_of([&] { run(options("file/out.tok")); }).code(), ErrorCode::resources);
  run(options("out.tok"));
  const std::string before = read_text_file(folder_ / "out.tok");
  auto changed = options("out.tok");
  changed.end_token.reset();
  for (const std::size_t room : {std::size_t{0}, std::size_t{100000}, std::size_t{2500000}}) {
    SmallDisk disk(room);
    EXPECT_EQ(error_of([&] { tokenize(disk, changed, encoder_.factory()); }).code(),
              ErrorCode::resources);
    EXPECT_EQ(read_text_file(folder_ / "out.tok"), before);
  }
}

}  // namespace
}  // namespace heddle
