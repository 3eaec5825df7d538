#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/formats/record_reader.h"

namespace heddle {

/// The texts of files, for training a tokenizer: a plain file is one text; of records each one's
/// "text" is one.
class TrainingTexts {
 public:
  /// Throws Error(data) that names the file and the line when it cannot be read, is not valid
  /// UTF-8, or a record has no "text".
  void add(const InputFile& input);
  std::vector<std::string_view> texts() const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace heddle
