#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace heddle::config {

// Ties a key to a member of RunConfig: `field(&RunConfig::optim, &OptimConfig::lr)`.

namespace detail {

template <class T>
struct TypeOf;
template <>
struct TypeOf<bool> : std::integral_constant<Type, Type::boolean> {};
template <>
struct TypeOf<int> : std::integral_constant<Type, Type::integer> {};
template <>
struct TypeOf<std::int8_t> : std::integral_constant<Type, Type::integer> {};
template <>
struct TypeOf<std::int64_t> : std::integral_constant<Type, Type::integer> {};
template <>
struct TypeOf<double> : std::integral_constant<Type, Type::number> {};
template <>
struct TypeOf<float> : std::integral_constant<Type, Type::number> {};
template <>
struct TypeOf<std::string> : std::integral_constant<Type, Type::text> {};
template <>
struct TypeOf<std::filesystem::path> : std::integral_constant<Type, Type::path> {};
template <>
struct TypeOf<std::vector<std::string>> : std::integral_constant<Type, Type::texts> {};
template <>
struct TypeOf<std::vector<DataSource>> : std::integral_constant<Type, Type::sources> {};
template <class T>
struct TypeOf<std::optional<T>> : TypeOf<T> {};

template <class T>
Value to_value(const T& member) {
  return member;
}
inline Value to_value(int member) { return std::int64_t{member}; }
inline Value to_value(std::int8_t member) { return std::int64_t{member}; }
/// The number of fewest digits that it stands for, not the nearest double.
inline Value to_value(float member) { return std::stod(fmt::format("{}", member)); }
inline Value to_value(const std::filesystem::path& member) { return member.string(); }
template <class T>
Value to_value(const std::optional<T>& member) {
  return member ? to_value(*member) : Value();
}

template <class T>
void assign(T& member, const Value& value) {
  member = std::get<T>(value);
}
inline void assign(int& member, const Value& value) {
  member = static_cast<int>(std::get<std::int64_t>(value));
}
inline void assign(std::int8_t& member, const Value& value) {
  member = static_cast<std::int8_t>(std::get<std::int64_t>(value));
}
inline void assign(float& member, const Value& value) {
  member = static_cast<float>(std::get<double>(value));
}
inline void assign(std::filesystem::path& member, const Value& value) {
  member = std::get<std::string>(value);
}
template <class T>
void assign(std::optional<T>& member, const Value& value) {
  assign(member.emplace(), value);
}

}  // namespace detail

/// The key's type follows from the member's, and what it can hold at most.
template <class S, class T>
Field field(S RunConfig::*section, T S::*member) {
  constexpr bool is_int = std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>;
  constexpr double most = is_int                           ? std::numeric_limits<int>::max()
                          : std::is_same_v<T, std::int8_t> ? std::numeric_limits<std::int8_t>::max()
                                                           : Field::kAny;
  return {.type = detail::TypeOf<T>::value,
          .most = most,
          .choices = {},
          .problem = {},
          .get = [=](const RunConfig& c) { return detail::to_value(c.*section.*member); },
          .set = [=](RunConfig& c, const Value& v) { detail::assign(c.*section.*member, v); }};
}

template <class S>
Field bytes(S RunConfig::*section, std::int64_t S::*member) {
  Field result = field(section, member);
  result.type = Type::bytes;
  return result;
}

/// `names` in the order of the enumerators.
template <class S, class E>
Field choice(S RunConfig::*section, E S::*member, std::vector<std::string> names) {
  static_assert(std::is_enum_v<E>);
  const auto get = [=](const RunConfig& c) {
    return Value(names[static_cast<std::size_t>(c.*section.*member)]);
  };
  const auto set = [=](RunConfig& c, const Value& v) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == std::get<std::string>(v)) c.*section.*member = static_cast<E>(i);
    }
  };
  return {.type = Type::choice,
          .most = Field::kAny,
          .choices = names,
          .problem = {},
          .get = get,
          .set = set};
}

/// A value that is written as text: T has a constructor from it, text() and problem_in(text).
template <class S, class T>
Field words(S RunConfig::*section, T S::*member) {
  return {.type = Type::text,
          .most = Field::kAny,
          .choices = {},
          .problem = [](const std::string& text) { return T::problem_in(text); },
          .get = [=](const RunConfig& c) { return Value((c.*section.*member).text()); },
          .set = [=](RunConfig& c,
                     const Value& v) { c.*section.*member = T(std::get<std::string>(v)); }};
}

/// A choice among names that are data, kept as text; "" when not given.
template <class S>
Field choice(S RunConfig::*section, std::string S::*member, std::vector<std::string> names) {
  Field result = field(section, member);
  result.type = Type::choice;
  result.choices = std::move(names);
  return result;
}

}  // namespace heddle::config
