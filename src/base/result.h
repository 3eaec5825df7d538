#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace heddle {

/// A value, or the Error that kept it from being one. For failures the caller expects and handles
/// (a missing file, text that may not parse); what ends the run is thrown instead. The names follow
/// std::expected, which GCC 12 does not have in C++20.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return has_value(); }

  /// Throws the error when there is no value.
  T& value() & {
    if (!has_value()) throw std::get<Error>(state_);
    return std::get<T>(state_);
  }
  const T& value() const& {
    if (!has_value()) throw std::get<Error>(state_);
    return std::get<T>(state_);
  }
  T&& value() && {
    if (!has_value()) throw std::get<Error>(state_);
    return std::get<T>(std::move(state_));
  }
  T value_or(T other) const { return has_value() ? std::get<T>(state_) : std::move(other); }
  const Error& error() const {
    HEDDLE_CHECK(!has_value(), "error() of a Result that has a value");
    return std::get<Error>(state_);
  }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace heddle
