#include "base/error.h"
#include "tokenizer/processors/kinds.h"

namespace heddle {
namespace {

void append_special_ids(const Section& step, const std::string& name, std::size_t vocab_size,
                        std::vector<std::int32_t>& out) {
  const Section token = step.section("special_tokens").section(name);
  for (const Json& value : token.array("ids")) {
    out.push_back(known_id(value, token.path_of("ids"), vocab_size));
  }
}

}  // namespace

/// Special tokens around one text, as `single` lists them.
Surroundings read_template_processor(const Section& step, std::size_t vocab_size) {
  Surroundings around;
  bool seen_text = false;
  for (std::size_t i = 0; i < step.array("single").size(); ++i) {
    const Section piece = step.element("single", i);
    if (piece.find("SpecialToken") != nullptr) {
      append_special_ids(step, piece.section("SpecialToken").string("id"), vocab_size,
                         seen_text ? around.after : around.before);
    } else {
      if (seen_text || piece.section("Sequence").string("id") != "A") {
        piece.refuse("a template with other than one text A");
      }
      seen_text = true;
    }
  }
  if (!seen_text) {
    fail(ErrorCode::data, "{} does not contain the text (Sequence A)", step.path_of("single"));
  }
  return around;
}

}  // namespace heddle
