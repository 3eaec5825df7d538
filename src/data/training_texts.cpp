#include "data/training_texts.h"

namespace heddle {

void TrainingTexts::add(const InputFile& input) {
  const DocumentFormat format;
  const auto reader = open_records(input, format);
  for (Record record; reader->next(record);) {
    texts_.push_back(record_text(std::move(record), input, format.field).value());
  }
}

std::vector<std::string_view> TrainingTexts::texts() const {
  return {texts_.begin(), texts_.end()};
}

}  // namespace heddle
