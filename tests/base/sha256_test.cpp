#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace heddle {
namespace {

std::string sha256(const std::string& text, std::size_t piece = 1000) {
  Sha256 hash;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    hash.update(std::as_bytes(std::span(text).subspan(at, std::min(piece, text.size() - at))));
  }
  return hash.finish();
}

TEST(Sha256, EqualsThePublishedVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesAreCut) {
  for (std::size_t size = 50; size < 140; ++size) {
    const std::string text(size, 'x');
    EXPECT_EQ(sha256(text, 1), sha256(text)) << size;
    EXPECT_EQ(sha256(text, 63), sha256(text)) << size;
  }
}

}  // namespace
}  // namespace heddle
