#include <array>

#include "base/error.h"
#include "tokenizer/processors/kinds.h"
#include "tokenizer/stage.h"

namespace heddle {
namespace {

struct ProcessorKind {
  std::string_view type;
  Surroundings (*read)(const Section&, std::size_t vocab_size);
};

/// Concerns only where in the text tokens come from, which we do not tell.
Surroundings read_byte_level_processor(const Section&, std::size_t) { return {}; }

constexpr std::array<ProcessorKind, 4> kProcessors = {{
    {"BertProcessing", read_bert_processor},
    {"ByteLevel", read_byte_level_processor},
    {"RobertaProcessing", read_bert_processor},
    {"TemplateProcessing", read_template_processor},
}};

}  // namespace

void add_post_processor(const Section& stage, std::size_t vocab_size, Surroundings& around) {
  for_steps(stage, "processors", "post-processor", kProcessors,
            [&](const ProcessorKind& kind, const Section& step) {
              const Surroundings read = kind.read(step, vocab_size);
              around.before.insert(around.before.begin(), read.before.begin(), read.before.end());
              around.after.insert(around.after.end(), read.after.begin(), read.after.end());
            });
}

std::int32_t known_id(const Json& value, const std::string& where, std::size_t vocab_size) {
  const std::int32_t id = Section::checked_id(value, where);
  if (static_cast<std::size_t>(id) >= vocab_size) {
    fail(ErrorCode::data, "{}: id {} is not in the vocabulary", where, id);
  }
  return id;
}

}  // namespace heddle
