#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/json.h"
#include "data/formats/record_reader.h"
#include "data/test_files.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using std::string_literals::operator""s;

fs::path references() { return fs::path(source_dir()) / "tests" / "reference" / "data"; }

Strings texts_of(const fs::path& path, const DocumentFormat& format = {},
                 std::optional<InputKind> asked = {}) {
  Strings texts;
  for (const InputFile& file : find_inputs({path}, asked).files) {
    const auto reader = open_records(file, format);
    for (Record record; reader->next(record);) {
      texts.push_back(record_text(record, file, format.field).value());
    }
    EXPECT_EQ(reader->position(), file.size_bytes) << path;
  }
  return texts;
}

/// The objects of a file, without spaces; keys in the file's order.
Strings objects_of(const fs::path& path) {
  Strings objects;
  for_each_object(find_inputs({path}).files, [&](const Json& object, const std::string&) {
    objects.push_back(object.dump());
  });
  return objects;
}

std::vector<std::vector<std::int32_t>> tokens_of(const fs::path& path,
                                                 std::optional<std::int32_t> end_token = {},
                                                 std::optional<InputKind> asked = {}) {
  std::vector<std::vector<std::int32_t>> documents;
  for (const InputFile& file : find_inputs({path}, asked).files) {
    const auto reader = open_records(file, {.end_token = end_token});
    for (Record record; reader->next(record);) {
      EXPECT_EQ(record.form, Record::Form::tokens);
      documents.push_back(record.tokens);
    }
    EXPECT_EQ(reader->position(), file.size_bytes);
  }
  return documents;
}

std::vector<fs::path> reference_files(bool is_nested) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(references())) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".json" || name.starts_with("refused-")) continue;
    if (name.starts_with("nested-") == is_nested) paths.push_back(entry.path());
  }
  return paths;
}

std::string packed_gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream zlib{};
  deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  deflate(&zlib, Z_FINISH);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

std::string packed_zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(Formats, EveryReferenceGivesTheSameTexts) {
  const Strings expected = texts_of(references() / "rows.json");
  ASSERT_EQ(expected.size(), 60U);
  const auto files = reference_files(false);
  EXPECT_GE(files.size(), 20U);
  for (const fs::path& path : files) EXPECT_EQ(texts_of(path), expected) << path;
}

TEST(Formats, EveryReferenceGivesTheSameObjects) {
  for (const bool is_nested : {false, true}) {
    const Strings expected = objects_of(references() / (is_nested ? "nested.json" : "rows.json"));
    const auto files = reference_files(is_nested);
    EXPECT_GE(files.size(), 4U);
    for (const fs::path& path : files) EXPECT_EQ(objects_of(path), expected) << path;
  }
}

TEST(Formats, NameColumnsThatAreMissingOrHoldNoText) {
  for (const char* name : {"zstd.parquet", "zstd.feather"}) {
    const auto refusal = [&](const char* field) {
      const Error error = error_of([&] { texts_of(references() / name, {.field = field}); });
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_TRUE(contains(error.hint(), "data.field")) << error.what();
      return error.message();
    };
    EXPECT_TRUE(contains(refusal("body"), "no column \"body\"; it has id, text, topic")) << name;
    EXPECT_TRUE(contains(refusal("score"), "column \"score\" does not hold texts")) << name;
    EXPECT_EQ(texts_of(references() / name, {.field = "topic"})[1], "code");
  }
  const Error brotli = error_of([] { texts_of(references() / "refused-brotli.parquet"); });
  EXPECT_TRUE(contains(brotli.message(), "codec 4 of Parquet")) << brotli.what();
  EXPECT_TRUE(contains(brotli.hint(), "zstd"));
}

TEST(Formats, NullTextsAreFaultsOfTheirRow) {
  for (const char* name : {"nested-1.parquet", "nested-2.parquet", "nested-stream.arrow"}) {
    const InputFile file = find_inputs({references() / name}).files.front();
    const auto reader = open_records(file, {.field = "text"});
    Strings texts, faults;
    for (Record record; reader->next(record);) {
      const auto text = record_text(record, file, "text");
      (text ? texts : faults).push_back(text ? *text : text.error().message());
    }
    EXPECT_EQ(texts.size(), 19U);
    ASSERT_EQ(faults.size(), 1U);
    EXPECT_TRUE(contains(faults[0], name + ", row 4: field \"text\" is null"s)) << faults[0];
  }
}

TEST(Formats, CutFilesAreRefusedByName) {
  const TemporaryFolder folder;
  for (const bool is_nested : {false, true}) {
    for (const fs::path& path : reference_files(is_nested)) {
      const std::string whole = read_text_file(path);
      const bool is_stream = path.extension() == ".arrow";  // may end behind any batch
      for (const std::size_t left : {whole.size() - 1, whole.size() - 9, whole.size() / 2,
                                     std::size_t{20}, std::size_t{8}}) {
        const fs::path cut = folder / ("cut" + path.extension().string());
        write_bytes(cut, whole.substr(0, left));
        const Error error = error_of([&] { objects_of(cut); });
        if (is_stream && error.code() == ErrorCode::internal) continue;
        EXPECT_EQ(error.code(), ErrorCode::data) << path << " " << left;
        EXPECT_TRUE(contains(error.message(), "cut.")) << error.what();
        EXPECT_TRUE(contains(error.message(), "damaged")) << path << " " << left << error.what();
      }
    }
  }
}

TEST(Formats, FlippedBytesAreRefusedOrHarmless) {
  const TemporaryFolder folder;
  for (const char* name :
       {"pages-2.parquet", "nested-1.parquet", "delta-byte-array.parquet", "nested-stream.arrow",
        "views.arrow", "dictionary.arrow", "lz4.feather"}) {
    const std::string whole = read_text_file(references() / name);
    const fs::path path = folder / name;
    for (std::size_t at = 0; at < whole.size(); at += 101) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      write_bytes(path, bytes);
      const Error error = error_of([&] { objects_of(path); });
      const bool is_harmless = error.message() == "nothing was thrown";
      EXPECT_TRUE(is_harmless || error.code() == ErrorCode::data) << name << " " << at;
    }
  }
}

TEST(Formats, PackedFilesAreUnpackedWhateverTheirName) {
  const TemporaryFolder folder;
  std::string lines;
  Strings expected;
  for (int i = 0; i < 30000; ++i) {
    expected.push_back(fmt::format("text {} {}", i, i * i));
    lines += fmt::format("{{\"text\": \"{}\"}}\n", expected.back());
  }
  const std::string half = lines.substr(0, lines.size() / 2), rest = lines.substr(half.size());
  write_bytes(folder / "a.jsonl.gz", packed_gzip(lines));
  write_bytes(folder / "b.jsonl.zst", packed_zstd(lines));
  write_bytes(folder / "c.data", packed_zstd(lines));
  write_bytes(folder / "d.jsonl", packed_gzip(half) + packed_gzip(rest) + std::string(512, '\0'));
  write_bytes(folder / "e.zst", packed_zstd(half) + packed_zstd(rest));
  write_bytes(folder / "f.jsonl.gz", lines);  // not packed at all
  const std::string passed_over("\x5A\x2A\x4D\x18\x04\0\0\0size", 12);
  write_bytes(folder / "g.jsonl",
              passed_over + packed_zstd(half) + passed_over + packed_zstd(rest));
  for (const char* name :
       {"a.jsonl.gz", "b.jsonl.zst", "c.data", "d.jsonl", "e.zst", "f.jsonl.gz", "g.jsonl"}) {
    EXPECT_EQ(texts_of(folder / name), expected) << name;
  }
  write_bytes(folder / "t.txt.gz", packed_gzip("\xEF\xBB\xBFone\n\ntwo"));
  EXPECT_EQ(texts_of(folder / "t.txt.gz", {.split = TextSplit::blank_lines}),
            (Strings{"one", "two"}));
}

TEST(Formats, DamagedPackedFilesAreRefused) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 9000; ++i) lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, i * i);
  const auto refusal = [&](const char* name, const std::string& bytes) {
    write_bytes(folder / name, bytes);
    const Error error = error_of([&] { texts_of(folder / name); });
    EXPECT_EQ(error.code(), ErrorCode::data) << name;
    EXPECT_TRUE(contains(error.message(), name)) << error.what();
    return error.message();
  };
  const std::string gzip = packed_gzip(lines), zstd = packed_zstd(lines);
  EXPECT_TRUE(contains(refusal("a.jsonl.gz", gzip.substr(0, gzip.size() / 2)), "gzip and damaged"));
  EXPECT_TRUE(contains(refusal("b.jsonl.gz", gzip + "more"), "gzip and damaged"));
  EXPECT_TRUE(
      contains(refusal("c.jsonl.zst", zstd.substr(0, zstd.size() - 5)), "its end is missing"));
  std::string flipped = zstd;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x55);
  EXPECT_TRUE(contains(refusal("d.jsonl.zst", flipped), "damaged") ||
              contains(refusal("d.jsonl.zst", flipped), "d.jsonl.zst:"));
  EXPECT_TRUE(contains(refusal("e.gz", packed_gzip(packed_gzip(lines))), "compressed twice"));
  EXPECT_TRUE(contains(refusal("f.gz", packed_gzip("PAR1")), "compressed file of kind parquet"));
  EXPECT_TRUE(contains(refusal("g.zst", packed_zstd("%PDF-1.7")), "PDF"));
}

TEST(Formats, TablesAreReadAsRfc4180HasThem) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.csv",
              "id,text,x\r\n1,\"a, \"\"b\"\"\nc\",\r\n\n2,plain \"q\",3\r\n3,\"\",\n4,last,5");
  EXPECT_EQ(texts_of(folder / "a.csv"), (Strings{"a, \"b\"\nc", "plain \"q\"", "", "last"}));
  EXPECT_EQ(objects_of(folder / "a.csv")[0], R"({"id":"1","text":"a, \"b\"\nc","x":""})");
  write_bytes(folder / "b.tsv", "\xEF\xBB\xBFtext\tid\na,b\t1\n");
  EXPECT_EQ(texts_of(folder / "b.tsv"), (Strings{"a,b"}));
  // What quotes hold is text, also nothing, and the end of a line of DOS.
  write_bytes(folder / "q.csv", "text\n\n\"\"\n\"a\r\"\n\"b\r\n\"\r\nc\r\n");
  EXPECT_EQ(texts_of(folder / "q.csv"), (Strings{"", "a\r", "b\r\n", "c"}));
  const auto refusal = [&](const std::string& content) {
    write_bytes(folder / "c.csv", content);
    return error_of([&] { texts_of(folder / "c.csv"); }).message();
  };
  EXPECT_TRUE(contains(refusal("id,body\n1,x\n"), "no column \"text\"; it has id, body"));
  EXPECT_TRUE(contains(refusal(""), "empty table"));
  EXPECT_TRUE(contains(refusal("id,text\n1,a\n2,\"b\n"), "c.csv:3: a quote that begins here"));
  EXPECT_TRUE(
      contains(refusal("id,text\n\"1\n2\",a\n1,a,b\n"), "c.csv:4: 3 cells in a table of 2"));
  EXPECT_TRUE(contains(refusal("id,text\n1,\xff\n"), "c.csv:2: invalid UTF-8"));
}

TEST(Formats, BareTokensAreCutAtTheEndToken) {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> ids = {5, 0, 7, 9, 1, 9, 9, 2};
  write_bytes(folder / "train.bin", bytes_of(ids));
  using Documents = std::vector<std::vector<std::int32_t>>;
  EXPECT_EQ(tokens_of(folder / "train.bin", 9), (Documents{{5, 0, 7, 9}, {1, 9}, {9}, {2}}));
  EXPECT_EQ(tokens_of(folder / "train.bin"), (Documents{{5, 0, 7, 9, 1, 9, 9, 2}}));
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 8;
  write_bytes(folder / "llmc.bin", bytes_of(header) + bytes_of(ids));
  EXPECT_EQ(tokens_of(folder / "llmc.bin", 9), tokens_of(folder / "train.bin", 9));
  header[0] = 20240801;
  write_bytes(folder / "wide.bin",
              bytes_of(header) + bytes_of(std::vector<std::uint32_t>(ids.begin(), ids.end())));
  EXPECT_EQ(tokens_of(folder / "wide.bin", 9), tokens_of(folder / "train.bin", 9));
  header[2] = 9;
  write_bytes(folder / "short.bin", bytes_of(header) + bytes_of(ids));
  EXPECT_TRUE(contains(error_of([&] { tokens_of(folder / "short.bin"); }).message(),
                       "its header promises 9 tokens"));
  write_bytes(folder / "odd.bin", bytes_of(ids) + "x");
  EXPECT_TRUE(
      contains(error_of([&] { tokens_of(folder / "odd.bin"); }).message(), "no whole number"));
}

/// An index of Megatron-LM over tokens of 4 bytes.
std::string megatron_index(const std::vector<std::int32_t>& sizes,
                           const std::vector<std::int64_t>& pointers,
                           const std::vector<std::int64_t>& documents, char type = 4) {
  const std::vector<std::uint64_t> version = {1}, counts = {sizes.size(), documents.size()};
  return "MMIDIDX\0\0"s + bytes_of(version) + type + bytes_of(counts) + bytes_of(sizes) +
         bytes_of(pointers) + bytes_of(documents);
}

TEST(Formats, MegatronsDocumentsAreItsOwn) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.bin", bytes_of(std::vector<std::int32_t>{1, 2, 3, 4, 70000, 6, 7}));
  write_bytes(folder / "a.idx", megatron_index({2, 1, 3, 1}, {0, 8, 12, 24}, {0, 2, 2, 3, 4}));
  using Documents = std::vector<std::vector<std::int32_t>>;
  const Documents expected = {{1, 2, 3}, {4, 70000, 6}, {7}};
  EXPECT_EQ(tokens_of(folder / "a.bin"), expected);
  EXPECT_EQ(tokens_of(folder / "a.idx"), expected) << "either of the two names both";
  const auto refusal = [&](const std::string& index) {
    write_bytes(folder / "a.idx", index);
    return error_of([&] { tokens_of(folder / "a.bin"); }).message();
  };
  const std::string whole = megatron_index({2, 1}, {0, 8}, {0, 2});
  EXPECT_TRUE(contains(refusal(whole.substr(0, 20)), "shorter than its header"));
  EXPECT_TRUE(contains(refusal(whole.substr(0, 60)), "do not fit into it"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, 9}, {0, 8}, {0, 2})), "9 tokens at byte 8"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, -1}, {0, 8}, {0, 2})), "-1 tokens"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, 1}, {0, 8}, {0, 3})), "sequences 0 to 3 of 2"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, 1}, {0, 8}, {1, 2})), "sequences 1 to 2 of 2"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, 1}, {0, 8}, {0, 1})), "end at sequence 1 of 2"));
  EXPECT_TRUE(contains(refusal(megatron_index({2, 1}, {0, 8}, {0, 2}, 6)), "type 6"));
}

}  // namespace
}  // namespace heddle
