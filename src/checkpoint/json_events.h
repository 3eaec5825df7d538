#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace heddle {

/// Base of the readers that take JSON event by event, for texts with up to millions of keys: a
/// document tree with ordered keys would cost quadratic time there, and would hide duplicate keys.
/// Every event is refused unless the reader overrides it; the reader says what it expected.
class StrictJsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not a whole one or is too large");
  }
  bool string(string_t&) override { return unexpected("a string"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(std::size_t) override { return unexpected("an object"); }
  bool key(string_t&) override { return unexpected("a key"); }
  bool end_object() override { return unexpected("the end of an object"); }
  bool start_array(std::size_t) override { return unexpected("an array"); }
  bool end_array() override { return unexpected("the end of an array"); }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& reason) override;

  /// Why reading stopped.
  const std::string& problem() const { return problem_; }

 protected:
  /// Says what stands here instead of what was found, for example `"shape" of tensor "x"`.
  virtual std::string place() const = 0;
  bool unexpected(const char* found) { return refuse(place() + " holds " + found); }
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

 private:
  std::string problem_;
};

/// Feeds `text` to `events`; throws Error(data) "where: problem" when they refuse it.
void parse_json_events(std::string_view text, StrictJsonEvents& events, const std::string& where);

}  // namespace heddle
