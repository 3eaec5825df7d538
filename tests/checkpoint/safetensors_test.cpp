#include "checkpoint/safetensors.h"

#include "checkpoint/safetensors_writer.h"
#include "support.h"

namespace heddle {
namespace {

using namespace testing_support;

struct BadHeader {
  const char* what;
  const char* header;
  std::size_t data_bytes;
  const char* says;
};

class BadHeaders : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, IsRefusedWithTheFileAndTheReason) {
  const TemporaryFolder folder;
  const auto path = folder / "bad.safetensors";
  write_file(path, safetensors_text(GetParam().header, std::string(GetParam().data_bytes, 'x')));
  expect_error([&] { SafetensorsFile file(path); }, ErrorCode::data, GetParam().says);
  expect_error([&] { SafetensorsFile file(path); }, ErrorCode::data, path.string());
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadHeaders,
    ::testing::Values(
        BadHeader{"empty", "", 0, "does not begin with '{'"},
        BadHeader{"array", "[]", 0, "does not begin with '{'"},
        BadHeader{"text", "{oops}", 0, "not valid JSON at byte"},
        BadHeader{"unfinished", R"({"a":)", 0, "not valid JSON"},
        BadHeader{"trailing", "{} x", 0, "not valid JSON"},
        BadHeader{"utf8", "{\"\xff\":1}", 0, "not valid JSON"},
        BadHeader{"nested", "{\"a\":{\"shape\":[[[[[[", 0, "holds an array"},
        BadHeader{"entry_number", R"({"a":3})", 0,
                  "the description of tensor \"a\" holds a number"},
        BadHeader{"no_dtype", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "no \"dtype\""},
        BadHeader{"no_shape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "no \"shape\""},
        BadHeader{"no_offsets", R"({"a":{"dtype":"F32","shape":[1]}})", 4, "no \"data_offsets\""},
        BadHeader{"unknown_field",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
                  "unknown field \"x\""},
        BadHeader{"dtype_number", R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4,
                  "\"dtype\" of tensor \"a\" holds a number"},
        BadHeader{"wrong_dtype", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4,
                  "has 4 bytes, but its shape and dtype F64 need 8"},
        BadHeader{"half_byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1,
                  "need 2"},
        BadHeader{"one_offset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
                  "1 numbers instead of 2"},
        BadHeader{"reversed", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                  "claims bytes 4 to 0"},
        BadHeader{"past_end", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4,
                  "claims bytes 0 to 8 of 4"},
        BadHeader{"negative_size", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                  "holds a negative number"},
        BadHeader{"fraction", R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4,
                  "not a whole one"},
        BadHeader{"huge_offset",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4,
                  "claims bytes"},
        BadHeader{"too_huge_offset",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}})", 4,
                  "too large"},
        BadHeader{"size_over_int64",
                  R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0,
                  "has a dimension of"},
        BadHeader{"overflow",
                  R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                  "too large to be true"},
        BadHeader{"overflow_beside_zero",
                  R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "too large to be true"},
        BadHeader{"bits_overflow",
                  R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
                  "too large to be true"},
        BadHeader{"overlap",
                  R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                  6, "\"b\" begins at byte 2, but a ends at byte 4 (overlap)"},
        BadHeader{"same_bytes",
                  R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                  4, "(overlap)"},
        BadHeader{"gap",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                  6, "(gap)"},
        BadHeader{"trailing_bytes", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3,
                  "take 2 bytes, but 3 bytes follow"},
        BadHeader{"twice",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                  4, "\"a\" is there twice"},
        BadHeader{"field_twice",
                  R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
                  "has \"dtype\" twice"},
        BadHeader{"metadata_number", R"({"__metadata__":{"format":1}})", 0,
                  "\"__metadata__\" holds a number"},
        BadHeader{"metadata_array", R"({"__metadata__":[]})", 0, "\"__metadata__\" holds an array"},
        BadHeader{"metadata_twice", R"({"__metadata__":{"a":"b","a":"c"}})", 0, "\"a\" twice"}),
    [](const auto& test) { return std::string(test.param.what); });

TEST(Safetensors, RefusesHeadersLargerThanTheFileOrTheLimit) {
  const TemporaryFolder folder;
  const auto with_length = [&](std::uint64_t length) {
    std::string text(sizeof length, '\0');
    std::memcpy(text.data(), &length, sizeof length);
    write_file(folder / "a", text + "{}");
    return [&] { SafetensorsFile file(folder / "a"); };
  };
  expect_error(with_length(3), ErrorCode::data, "truncated");
  expect_error(with_length(kMaxSafetensorsHeaderBytes + 1), ErrorCode::data, "more than 100000000");
  expect_error(with_length(~std::uint64_t{0}), ErrorCode::data, "not a safetensors file");
}

TEST(Safetensors, RefusesEveryPrefixOfAFile) {
  const TemporaryFolder folder;
  const std::string whole = safetensors_text(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      "01234567");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_file(folder / "cut.safetensors", whole.substr(0, length));
    expect_error([&] { SafetensorsFile file(folder / "cut.safetensors"); }, ErrorCode::data,
                 "cut.safetensors");
  }
  write_file(folder / "cut.safetensors", whole);
  EXPECT_NO_THROW(SafetensorsFile(folder / "cut.safetensors"));
}

TEST(Safetensors, NamesAMissingFileAndAFolder) {
  const TemporaryFolder folder;
  expect_error([&] { SafetensorsFile file(folder / "none"); }, ErrorCode::data, "none");
  expect_error([&] { SafetensorsFile file(folder.path()); }, ErrorCode::data, "not a regular file");
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndPadding) {
  const TemporaryFolder folder;
  write_file(folder / "a",
             safetensors_text(R"({"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                              R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[1,1]}}   )",
                              "\x2a"));
  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(file.entries().size(), 2U);
  Memory memory;
  const Tensor scalar = memory.alloc({}, DType::u8, MemoryTag::data);
  file.read("s", scalar);
  EXPECT_EQ(*scalar.data<std::uint8_t>(), 42);
  file.read("e", memory.alloc({0, 7}, DType::f32, MemoryTag::data));
}

TEST(Safetensors, ReadsUnalignedDataAndConvertsFloats) {
  const TemporaryFolder folder;
  // bf16 1.0 and -2.0, f16 0.5, f64 3.25, after one byte that unaligns everything.
  std::string data = "\x01";
  const auto add = [&](auto value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  add(std::uint16_t{0x3f80});
  add(std::uint16_t{0xc000});
  add(std::uint16_t{0x3800});
  add(3.25);
  write_file(folder / "a",
             safetensors_text(R"({"p":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                              R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[1,5]},)"
                              R"("h":{"dtype":"F16","shape":[1],"data_offsets":[5,7]},)"
                              R"("d":{"dtype":"F64","shape":[1],"data_offsets":[7,15]}})",
                              data));
  const SafetensorsFile file(folder / "a");
  Memory memory;
  const Tensor two = memory.alloc({2}, DType::f32, MemoryTag::data);
  file.read("b", two);
  EXPECT_EQ(two.data<float>()[0], 1.0F);
  EXPECT_EQ(two.data<float>()[1], -2.0F);
  const Tensor one = memory.alloc({1}, DType::f64, MemoryTag::data);
  file.read("h", one);
  EXPECT_EQ(*one.data<double>(), 0.5);
  const Tensor half = memory.alloc({1}, DType::f16, MemoryTag::data);
  file.read("d", half);
  EXPECT_EQ(half.data<Float16>()->bits, 0x4280);
}

TEST(Safetensors, RefusesToReadOpaqueIntegerAndWronglyShapedTensors) {
  const TemporaryFolder folder;
  write_file(folder / "a",
             safetensors_text(R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                              R"("new":{"dtype":"X9","shape":[5],"data_offsets":[2,5]},)"
                              R"("i":{"dtype":"I32","shape":[1],"data_offsets":[5,9]},)"
                              R"("weight":{"dtype":"F16","shape":[2],"data_offsets":[9,13]}})",
                              std::string(13, 'x')));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.bytes(file.entry("new")).size(), 3U);
  Memory memory;
  const Tensor out = memory.alloc({2}, DType::f32, MemoryTag::data);
  expect_error([&] { file.read("q", out); }, ErrorCode::data, "\"q\" has dtype F8_E4M3");
  expect_error([&] { file.read("new", out); }, ErrorCode::data, "\"new\" has dtype X9");
  expect_error([&] { file.read("i", out); }, ErrorCode::data, "cannot be read as f32");
  expect_error([&] { file.read("wieght", out); }, ErrorCode::data, "nearest name is \"weight\"");
  expect_error([&] { file.read("weight", memory.alloc({3}, DType::f32, MemoryTag::data)); },
               ErrorCode::data, "\"weight\" has shape [2], but [3] is needed");
}

TEST(Safetensors, ReadsAnySliceIntoAnyStridedTensor) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {3, 4, 5});
  {
    SafetensorsWriter writer(real_file_system(), folder / "a",
                             {tensor_spec("w", DType::f32, whole.shape())});
    writer.append("w", whole);
    writer.finish();
  }
  const SafetensorsFile file(folder / "a");
  const Tensor wide = memory.zeros({2, 4, 9}, DType::f32, MemoryTag::data);
  for (int b0 = 0; b0 < 3; ++b0)
    for (int b1 = 0; b1 < 4; ++b1)
      for (int b2 = 0; b2 < 5; ++b2) {
        const std::array<std::int64_t, 3> begin = {b0, b1, b2};
        const std::array<std::int64_t, 3> end = {std::min(3, b0 + 2), 4, 5};
        const Tensor out = wide.slice(0, 0, end[0] - b0).slice(1, 0, 4 - b1).slice(2, 1, 6 - b2);
        file.read_slice("w", begin, end, out);
        for (int i = 0; i < out.size(0); ++i)
          for (int j = 0; j < out.size(1); ++j)
            for (int k = 0; k < out.size(2); ++k) {
              ASSERT_EQ(out.data<float>()[i * out.stride(0) + j * out.stride(1) + k],
                        whole.host<float>()[static_cast<std::size_t>((b0 + i) * 20 + (b1 + j) * 5 +
                                                                     b2 + k)]);
            }
      }
}

TEST(SafetensorsWriter, WritesWhatTheReaderReadsAndAlignsTheData) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor matrix = counting(memory, {4, 6});
  SafetensorsWriter writer(
      real_file_system(), folder / "a",
      {tensor_spec("m", DType::f32, {4, 3}), tensor_spec("empty", DType::f32, {0}),
       tensor_spec("bytes \"quoted\"", DType::u8, {5})},
      {{"format", "pt"}, {"k", "v"}});
  writer.append("m", matrix.slice(1, 3, 6));
  const std::string bytes = "hello";
  writer.append("bytes \"quoted\"", std::as_bytes(std::span(bytes).first(2)));
  writer.append("bytes \"quoted\"", std::as_bytes(std::span(bytes).subspan(2)));
  const FileRecord record = writer.finish();

  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(record.size_bytes, file.file_bytes().size());
  EXPECT_EQ(record.checksum, checksum_of(file.file_bytes()));
  EXPECT_EQ((file.bytes(file.entry("m")).data() - file.file_bytes().data()) % 64, 0);
  EXPECT_EQ(file.metadata().at("k"), "v");
  const Tensor out = memory.alloc({4, 3}, DType::f32, MemoryTag::data);
  file.read("m", out);
  EXPECT_EQ(out.host<float>()[0], 3.0F);
  EXPECT_EQ(out.host<float>()[11], 23.0F);
  const auto tail = file.bytes(file.entry("bytes \"quoted\""));
  EXPECT_EQ(std::memcmp(tail.data(), "hello", 5), 0);
}

TEST(SafetensorsWriter, RewritesEveryFixtureWithIdenticalTensorBytes) {
  const auto fixtures = shared_fixtures();
  if (!fixtures) GTEST_SKIP() << "the shared fixtures are absent";
  const TemporaryFolder folder;
  int files = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(*fixtures)) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile original(item.path());
    const std::vector<TensorSpec> specs(original.entries().begin(), original.entries().end());
    SafetensorsWriter writer(real_file_system(), folder / "copy", specs, original.metadata());
    for (const auto& entry : original.entries()) writer.append(entry.name, original.bytes(entry));
    writer.finish();
    const SafetensorsFile copy(folder / "copy");
    ASSERT_EQ(copy.entries().size(), original.entries().size());
    EXPECT_EQ(copy.metadata(), original.metadata());
    for (const auto& entry : original.entries()) {
      const auto a = original.bytes(entry), b = copy.bytes(copy.entry(entry.name));
      EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0);
    }
    ++files;
  }
  EXPECT_GT(files, 10);
}

}  // namespace
}  // namespace heddle
