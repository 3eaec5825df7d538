#include "codec/registry.h"

#include "base/error.h"
#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

TEST(CodecRegistry, NamesSayAllParametersAndMakeTheSameCodec) {
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name), again = make_codec(codec->name());
    EXPECT_EQ(again->name(), codec->name());
    EXPECT_TRUE(codec->name().starts_with(name)) << codec->name();
    EXPECT_EQ(again->encoded_bytes(12345), codec->encoded_bytes(12345));
  }
  for (const CodecHelp& help : known_codecs()) {
    const std::string name(help.form.substr(0, help.form.find_first_of(":[")));
    EXPECT_EQ(make_codec(name)->name(), help.usual);
  }
}

TEST(CodecRegistry, SaysWhatIsWrongWithAName) {
  const auto expect_refusal = [](const std::string& text,
                                 std::initializer_list<const char*> parts) {
    try {
      make_codec(text);
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      for (const char* part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  };
  expect_refusal("", {"no codec \"\"", "bf16", "lossless"});
  expect_refusal("itn8", {"itn8", "did you mean int8"});
  expect_refusal("int8:", {"block size \"\"", "int8[:BLOCK]"});
  expect_refusal("int8:100", {"block size \"100\"", "multiple of 8", "4096"});
  expect_refusal("int8:8192", {"8192", "4096"});
  expect_refusal("int4:12x", {"12x"});
  expect_refusal("e3m0:-8", {"-8"});
  expect_refusal("bf16:2", {"nothing is known of \"2\""});
  expect_refusal("int8:128:9", {"\"9\""});
  expect_refusal("topk:64:100", {"100", "power of two"});
  expect_refusal("topk:64:32", {"64 of 32"});
  expect_refusal("zfp:0", {"rate", "1 to 32"});
  expect_refusal("zfp:33", {"rate", "1 to 32"});
  expect_refusal("zfp:8:4:round", {"round", "truncate"});
}

TEST(CodecRegistry, SizesAreThoseOfTheFormats) {
  const auto bytes = [](const char* name, std::int64_t values) {
    return make_codec(name)->encoded_bytes(values);
  };
  EXPECT_EQ(bytes("bf16", 1000), 2000U);
  EXPECT_EQ(bytes("int8", 1000), 1000U + 8 * 4);
  EXPECT_EQ(bytes("int4", 1001), 448U + 53 + 8 * 4);
  EXPECT_EQ(bytes("fp8:64", 128), 128U + 8);
  EXPECT_EQ(bytes("e3m0", 256), 128U + 2);
  EXPECT_EQ(bytes("sign", 1 << 20), 4U + (1 << 17)) << "1/32 of float32, and the scale";
  EXPECT_EQ(bytes("topk", 4096), 116U);
  EXPECT_LE(140 * bytes("topk", 1 << 20), std::size_t{4} << 20);
  EXPECT_EQ(bytes("zfp:8", 1600), 1600U);
  EXPECT_EQ(bytes("zfp:8:1", 1600), 1600U);
  EXPECT_EQ(bytes("zfp:5:1", 4), 8U) << "whole words of 64 bits";
  for (const std::string& name : all_codecs()) EXPECT_EQ(make_codec(name)->encoded_bytes(0), 0U);
}

}  // namespace
}  // namespace heddle::codec
