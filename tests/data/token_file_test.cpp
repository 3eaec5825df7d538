#include "data/token_file.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

#include "data/test_files.h"

namespace heddle {
namespace {

std::string bytes_of(const std::filesystem::path& path) { return read_text_file(path); }

std::span<const std::byte> view(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

template <class T>
void put(std::string& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// Makes the header's own checksum true again, so that the check behind it is the one that speaks.
std::string sealed(std::string bytes) {
  put(bytes, 56, XXH64(bytes.data(), 56, 0));
  return bytes;
}

Error refusal(const std::string& bytes, TokenFile::Check check = TokenFile::Check::structure) {
  return error_of([&] { TokenFile::parse(view(bytes), "x.tok", check); });
}

class TokenFileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::string good_ = bytes_of(write_counting_file(folder_ / "good.tok", {5, 1, 4}));
};

TEST_F(TokenFileTest, GivesBackWhatWasWritten) {
  for (const std::int64_t vocab : {std::int64_t{1000}, std::int64_t{65536}, std::int64_t{65537}}) {
    const auto path = write_counting_file(folder_ / "a.tok", {5, 1, 4}, vocab, 99);
    const TokenFile file = TokenFile::open(path, TokenFile::Check::content);
    EXPECT_EQ(file.header().dtype, vocab <= 65536 ? DType::u16 : DType::u32);
    EXPECT_EQ(file.header().vocab_size, vocab);
    EXPECT_EQ(file.header().tokenizer_fingerprint, 99U);
    EXPECT_EQ(file.token_count(), 10);
    EXPECT_EQ(file.document_count(), 3);
    std::vector<std::int32_t> tokens(4);
    file.read(4, tokens);
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{4, 5, 6, 7}));
    EXPECT_EQ(file.document_start(2), 6);
    EXPECT_EQ(file.document_start(3), 10);
    EXPECT_EQ(file.document_of(4), 0);
    EXPECT_EQ(file.document_of(5), 1);
    EXPECT_EQ(file.document_of(9), 2);
  }
}

TEST_F(TokenFileTest, HasTheBytesOfItsSpecification) {
  EXPECT_EQ(good_.substr(0, 8), "HDLTOKEN");
  EXPECT_EQ(good_.size(), 64U + 20U + 4U + 24U);
  EXPECT_EQ(good_.substr(8, 8), std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(good_.substr(64, 4), std::string("\0\0\1\0", 4));
  EXPECT_EQ(good_.substr(good_.size() - 16, 16),
            std::string("\5\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 16));
}

TEST_F(TokenFileTest, MayBeEmptyOfTokens) {
  write_token_file(real_file_system(), folder_ / "none.tok", {10, 0}, {}, {});
  EXPECT_EQ(TokenFile::open(folder_ / "none.tok", TokenFile::Check::content).token_count(), 0);
}

TEST_F(TokenFileTest, RefusesEveryTruncation) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    const Error error = refusal(good_.substr(0, size));
    ASSERT_EQ(error.code(), ErrorCode::data) << size;
    ASSERT_TRUE(contains(error.what(), "x.tok")) << error.what();
    ASSERT_TRUE(contains(error.what(), "heddle tokenize")) << error.what();
  }
  EXPECT_EQ(refusal(good_ + "x").code(), ErrorCode::data);
}

TEST_F(TokenFileTest, NoticesEveryFlippedByteWhenContentIsChecked) {
  for (std::size_t at = 0; at < good_.size(); ++at) {
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x20);
    EXPECT_EQ(refusal(bytes, TokenFile::Check::content).code(), ErrorCode::data) << "byte " << at;
  }
}

TEST_F(TokenFileTest, RefusesOtherFilesAndVersions) {
  EXPECT_TRUE(contains(refusal("{\"text\": 1}").what(), "does not begin with HDLTOKEN"));
  EXPECT_TRUE(contains(refusal("").what(), "empty"));
  std::string bytes = good_;
  put<std::uint32_t>(bytes, 8, 3);
  EXPECT_TRUE(contains(refusal(sealed(bytes)).what(), "version 3"));
  put<std::uint32_t>(bytes, 8, 2);  // of which a part is missing
  EXPECT_EQ(refusal(sealed(bytes)).code(), ErrorCode::data);
}

TEST_F(TokenFileTest, RefusesCountsThatLie) {
  for (const std::size_t field : {std::size_t{24}, std::size_t{32}}) {
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{13},
                                      std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
      std::string bytes = good_;
      put(bytes, field, count);
      EXPECT_EQ(refusal(sealed(bytes)).code(), ErrorCode::data) << field << " " << count;
    }
  }
}

TEST_F(TokenFileTest, RefusesDocumentsThatDoNotAscend) {
  const std::size_t index = good_.size() - 24;
  for (const auto& starts : std::vector<std::vector<std::uint64_t>>{
           {1, 5, 6}, {0, 0, 6}, {0, 6, 5}, {0, 5, 10}, {0, 5, ~std::uint64_t{0}}}) {
    std::string bytes = good_;
    for (std::size_t i = 0; i < 3; ++i) put(bytes, index + 8 * i, starts[i]);
    EXPECT_TRUE(contains(refusal(bytes).what(), "cannot begin at")) << refusal(bytes).what();
  }
}

TEST_F(TokenFileTest, RefusesTokensOutsideTheVocabularyOnAccess) {
  std::string bytes = good_;
  put<std::uint16_t>(bytes, 64 + 2 * 3, 1000);
  const TokenFile file = TokenFile::parse(view(bytes), "x.tok");
  std::vector<std::int32_t> tokens(3);
  EXPECT_NO_THROW(file.read(0, tokens));
  const Error error = error_of([&] { file.read(1, tokens); });
  EXPECT_EQ(error.code(), ErrorCode::data);
  EXPECT_TRUE(contains(error.what(), "token 1000")) << error.what();
}

TEST_F(TokenFileTest, RefusesImpossibleVocabularies) {
  for (const std::uint64_t vocab : {std::uint64_t{0}, std::uint64_t{65537}, ~std::uint64_t{0}}) {
    std::string bytes = good_;
    put(bytes, 16, vocab);
    EXPECT_TRUE(contains(refusal(sealed(bytes)).what(), "vocabulary")) << vocab;
  }
}

TEST_F(TokenFileTest, ReadsUnalignedMemory) {
  const std::string shifted = "x" + good_;
  const TokenFile file =
      TokenFile::parse(view(shifted).subspan(1), "x.tok", TokenFile::Check::content);
  EXPECT_EQ(file.document_of(9), 2);
}

TEST_F(TokenFileTest, ConcatenationEqualsOneFile) {
  const auto whole = write_counting_file(folder_ / "whole.tok", {5, 1, 4, 7}, 1 << 20);
  const auto first = write_counting_file(folder_ / "first.tok", {5, 1, 4}, 1 << 20);
  std::vector<std::int32_t> tokens(7);
  std::iota(tokens.begin(), tokens.end(), 10);
  const std::vector<std::int64_t> starts = {0};
  write_token_file(real_file_system(), folder_ / "second.tok", {1 << 20, 7}, tokens, starts);
  write_token_file(real_file_system(), folder_ / "none.tok", {1 << 20, 7}, {}, {});
  concatenate_token_files(real_file_system(),
                          {{first}, {folder_ / "none.tok"}, {folder_ / "second.tok"}}, {1 << 20, 7},
                          folder_ / "joined.tok");
  EXPECT_EQ(bytes_of(folder_ / "joined.tok"), bytes_of(whole));
  // The same with the last document in two parts.
  const auto longer = write_counting_file(folder_ / "longer.tok", {5, 1, 11}, 1 << 20);
  concatenate_token_files(real_file_system(), {{first}, {folder_ / "second.tok", true}},
                          {1 << 20, 7}, folder_ / "joined.tok");
  EXPECT_EQ(bytes_of(folder_ / "joined.tok"), bytes_of(longer));
}

TEST_F(TokenFileTest, NamesAMissingFileAndAFolderThatCannotBeWritten) {
  EXPECT_TRUE(
      contains(error_of([&] { TokenFile::open(folder_ / "absent.tok"); }).what(), "absent.tok"));
  const Error error = error_of([&] { write_counting_file(folder_ / "no/such/a.tok", {3}); });
  EXPECT_EQ(error.code(), ErrorCode::resources);
  EXPECT_TRUE(contains(error.what(), "no/such/a.tok")) << error.what();
}

}  // namespace
}  // namespace heddle
