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

Value concatenate(const Value& a, const Value& b);
/// `needle in hay`.
bool contains(const Value& needle, const Value& hay);

}  // namespace heddle::chat
