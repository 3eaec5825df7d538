#include "tokenizer/training_text.h"

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace {

std::string_view text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void TrainingTexts::add_file(const std::filesystem::path& path) {
  auto file = std::make_unique<MappedFile>(path);
  const auto text = text_of(*file);
  if (const auto valid = valid_utf8_prefix(text); valid != text.size()) {
    throw Error(ErrorCode::data,
                fmt::format("{} is not valid UTF-8 at byte {}", path.string(), valid),
                "give text files in UTF-8, or .jsonl files with a \"text\" in each line");
  }
  if (path.extension() == ".jsonl") {
    add_json_lines(*file);
  } else {
    files_.push_back(std::move(file));
  }
}

void TrainingTexts::add_json_lines(const MappedFile& file) {
  std::string_view rest = text_of(file);
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (trim(line).empty()) continue;
    const std::string where = fmt::format("{} line {}", file.path().string(), number);
    const Json object = parse_json(line, where);
    const auto text = object.is_object() ? object.find("text") : object.end();
    if (text == object.end() || !text->is_string()) {
      fail(ErrorCode::data, "{}: not an object with a string \"text\"", where);
    }
    lines_.push_back(text->get<std::string>());
  }
}

std::vector<std::string_view> TrainingTexts::texts() const {
  std::vector<std::string_view> texts(lines_.begin(), lines_.end());
  for (const auto& file : files_) texts.push_back(text_of(*file));
  return texts;
}

}  // namespace heddle
