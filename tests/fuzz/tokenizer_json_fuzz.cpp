// Any bytes as a tokenizer.json: either a clean Error, or a tokenizer whose tokens spell the text
// they were made from.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

using heddle::Error;
using heddle::Tokenizer;

namespace {

constexpr char kText[] =
    "Hello <|a|>  world's 123456 caf\xC3\xA9 e\xCC\x81 \xE4\xB8\xAD\n\n\t\xFF\xF0\x9F";

void use(const Tokenizer& tokenizer) {
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.encode(kText, {.add_special = true, .parse_special = parse_special});
    for (const auto id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    }
    heddle::StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const auto id : ids) streamed += decoder.push(id);
    if (streamed + decoder.finish() != tokenizer.decode(ids)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(Tokenizer::from_json(std::string(reinterpret_cast<const char*>(data), size), "fuzz.json"));
  } catch (const Error&) {
  }
  return 0;
}
