#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "data/documents.h"

namespace heddle {

/// The texts of files, for training a tokenizer: a plain file is one text, mapped into memory; of
/// JSON lines each line's "text" is one.
class TrainingTexts {
 public:
  /// Throws Error(data) that names the file and the line when it cannot be read, is not valid
  /// UTF-8, or a JSON line has no "text".
  void add(const InputFile& input);
  std::vector<std::string_view> texts() const;

 private:
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::string_view> plain_;  // views into files_
  std::vector<std::string> lines_;
};

}  // namespace heddle
