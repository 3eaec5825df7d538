#include "base/error.h"
#include "tokenizer/processors/kinds.h"

namespace heddle {

/// `cls` before the text and `sep` behind it, each a token and its id.
Surroundings read_bert_processor(const Section& step, std::size_t vocab_size) {
  const auto id_of = [&](const char* key) {
    const Json& pair = step.array(key);
    if (pair.size() != 2) fail(ErrorCode::data, "{} is not a token and its id", step.path_of(key));
    return known_id(pair[1], step.path_of(key), vocab_size);
  };
  return {{id_of("cls")}, {id_of("sep")}};
}

}  // namespace heddle
