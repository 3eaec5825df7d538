#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"

namespace heddle {

/// The texts of files: a plain file is one text, mapped into memory; of a .jsonl file each line is
/// an object whose "text" is one text.
class TrainingTexts {
 public:
  /// Throws Error(data) that names the file and the line or byte when it cannot be read, is not
  /// valid UTF-8, or (JSONL) a line has no "text".
  void add_file(const std::filesystem::path& path);
  std::vector<std::string_view> texts() const;

 private:
  void add_json_lines(const MappedFile& file);

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::string> lines_;
};

}  // namespace heddle
