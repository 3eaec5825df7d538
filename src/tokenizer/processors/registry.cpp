#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/processors/kinds.h"

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

void add_post_processor(const Section& step, std::size_t vocab_size, Surroundings& around) {
  const std::string& type = step.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < step.array("processors").size(); ++i) {
      add_post_processor(step.element("processors", i), vocab_size, around);
    }
    return;
  }
  const auto kind = std::find_if(kProcessors.begin(), kProcessors.end(),
                                 [&](const ProcessorKind& one) { return one.type == type; });
  if (kind == kProcessors.end()) step.refuse(fmt::format("post-processor {}", type));
  const Surroundings read = kind->read(step, vocab_size);
  around.before.insert(around.before.begin(), read.before.begin(), read.before.end());
  around.after.insert(around.after.end(), read.after.begin(), read.after.end());
}

std::int32_t known_id(const Json& value, const std::string& where, std::size_t vocab_size) {
  const std::int32_t id = Section::checked_id(value, where);
  if (static_cast<std::size_t>(id) >= vocab_size) {
    fail(ErrorCode::data, "{}: id {} is not in the vocabulary", where, id);
  }
  return id;
}

}  // namespace heddle
