#include "data/training_texts.h"

namespace heddle {

void TrainingTexts::add(const InputFile& input) {
  auto file = std::make_unique<MappedFile>(input.path);
  const std::string_view content(reinterpret_cast<const char*>(file->bytes().data()),
                                 file->bytes().size());
  const bool is_plain = input.kind == InputKind::text;
  read_documents(
      input, content, text_begin(content), content.size(), {},
      [&](std::string_view text) {
        if (is_plain) {
          plain_.push_back(text);
        } else {
          lines_.emplace_back(text);
        }
      },
      [](const Error& error) { throw error; });
  if (is_plain) files_.push_back(std::move(file));
}

std::vector<std::string_view> TrainingTexts::texts() const {
  std::vector<std::string_view> texts(lines_.begin(), lines_.end());
  texts.insert(texts.end(), plain_.begin(), plain_.end());
  return texts;
}

}  // namespace heddle
