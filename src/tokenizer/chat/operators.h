#pragma once

#include "tokenizer/chat/value.h"

namespace heddle::chat {

/// Python's operators on numbers; multiply repeats texts. Others are refused with Error(data).
Value subtract(const Value& a, const Value& b);
Value multiply(const Value& a, const Value& b);
Value divide(const Value& a, const Value& b);
Value divide_down(const Value& a, const Value& b);
Value remainder(const Value& a, const Value& b);
Value power(const Value& a, const Value& b);

/// Of what they print.
Value concatenate(const Value& a, const Value& b);
/// As HTML.
std::string escaped(const Value& value);
/// The result of __builtin_..._overflow; numbers of more than 64 bits are refused.
template <class Compute>
std::int64_t exact(std::int64_t a, std::int64_t b, Compute compute) {
  std::int64_t result = 0;
  if (compute(a, b, &result)) template_error("a whole number is too large");
  return result;
}

/// `needle in hay`.
bool contains(const Value& needle, const Value& hay);

}  // namespace heddle::chat
