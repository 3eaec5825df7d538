#include "tokenizer/section.h"

#include "base/error.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {

Section::Section(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
  if (!json.is_object()) fail(ErrorCode::data, "{} is not an object", path_);
}

std::string Section::path_of(std::string_view key) const {
  return fmt::format("{}{}{}", path_, path_.ends_with(": ") ? "" : ".", key);
}

const Json* Section::find(std::string_view key) const {
  const auto at = json_.find(key);
  return at == json_.end() || at->is_null() ? nullptr : &*at;
}

const Json& Section::at(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(ErrorCode::data, "{} is missing", path_of(key));
  return *value;
}

bool Section::flag(std::string_view key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) fail(ErrorCode::data, "{} is not true or false", path_of(key));
  return value->get<bool>();
}

const std::string& Section::string(std::string_view key) const {
  const Json& value = at(key);
  if (!value.is_string()) fail(ErrorCode::data, "{} is not a string", path_of(key));
  return value.get_ref<const std::string&>();
}

std::string Section::string(std::string_view key, const std::string& otherwise) const {
  return find(key) == nullptr ? otherwise : string(key);
}

const std::string& Section::character(std::string_view key) const {
  const std::string& text = string(key);
  if (text.empty() ||
      static_cast<std::size_t>(decode_utf8(text.data(), text.data() + text.size()).length) !=
          text.size()) {
    fail(ErrorCode::data, "{} is not one character", path_of(key));
  }
  return text;
}

const Json& Section::array(std::string_view key) const {
  const Json& value = at(key);
  if (!value.is_array()) fail(ErrorCode::data, "{} is not a list", path_of(key));
  return value;
}

Section Section::element(std::string_view key, std::size_t i) const {
  return {array(key).at(i), fmt::format("{}[{}]", path_of(key), i)};
}

std::int64_t Section::count(std::string_view key, std::int64_t otherwise,
                            std::int64_t limit) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer() || *value < 0 || *value > limit) {
    fail(ErrorCode::data, "{} = {} is no whole number from 0 to {}", path_of(key), value->dump(),
         limit);
  }
  return value->get<std::int64_t>();
}

std::int32_t Section::checked_id(const Json& value, const std::string& path) {
  if (!value.is_number_integer()) fail(ErrorCode::data, "{} is not an integer", path);
  if (value.is_number_unsigned()
          ? value.get<std::uint64_t>() >= kMaxTokens
          : value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kMaxTokens) {
    fail(ErrorCode::data, "{} = {} is no token id (0 to {})", path, value.dump(), kMaxTokens - 1);
  }
  return value.get<std::int32_t>();
}

void Section::refuse(std::string_view what, const std::string& hint) const {
  throw Error(ErrorCode::data, fmt::format("{}: {} is not supported", path_, what), hint);
}

}  // namespace heddle
