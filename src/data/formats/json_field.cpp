#include "data/formats/json_field.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace heddle {
namespace {

class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  std::optional<std::string> value;
  bool is_object = false, has_field = false;
  std::string parse_failure;

  bool null() override { return other_value(); }
  bool boolean(bool) override { return other_value(); }
  bool number_integer(number_integer_t) override { return other_value(); }
  bool number_unsigned(number_unsigned_t) override { return other_value(); }
  bool number_float(number_float_t, const string_t&) override { return other_value(); }
  bool binary(binary_t&) override { return other_value(); }
  bool string(string_t& text) override {
    if (at_field_) value = std::move(text);
    at_field_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object = true;
    other_value();
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && is_object && name == field_;
    has_field = has_field || at_field_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    other_value();
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string_view reason = error.what();
    for (const std::string_view name : {"] ", ": "}) {  // of the exception, and of the place
      if (const auto at = reason.rfind(name); at != std::string_view::npos) {
        reason = reason.substr(at + 2);
      }
    }
    parse_failure = fmt::format("not valid JSON at byte {}: {}", position, reason);
    return false;
  }

 private:
  bool other_value() {
    if (at_field_) value.reset();
    at_field_ = false;
    return true;
  }

  const std::string& field_;
  int depth_ = 0;
  bool at_field_ = false;  // the next value is the one asked for
};

}  // namespace

Result<std::string> json_field(std::string_view line, const std::string& field) {
  FieldReader reader(field);
  const auto error = [](std::string what, std::string hint = {}) {
    return Error(ErrorCode::data, std::move(what), std::move(hint));
  };
  if (!nlohmann::json::sax_parse(line, &reader)) return error(reader.parse_failure);
  if (!reader.is_object) return error("not a JSON object");
  if (!reader.has_field) {
    return error(fmt::format("no field \"{}\"", field),
                 "name the field that has the text with --field or data.field, or leave such "
                 "documents out with `heddle tokenize --on-error skip`");
  }
  if (!reader.value) return error(fmt::format("field \"{}\" is not a string", field));
  return std::move(*reader.value);
}

}  // namespace heddle
