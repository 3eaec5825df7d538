#include "tokenizer/chat/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tokenizer/chat/text_methods.h"

namespace heddle::chat {
namespace {

template <class Whole, class Real>
Value arithmetic(const Value& a, const Value& b, Whole whole, Real real) {
  const auto is_number = [](const Value& v) { return v.is_whole() || v.real() != nullptr; };
  if (!is_number(a) || !is_number(b)) {
    template_error(fmt::format("arithmetic with {} and {}", a.kind(), b.kind()));
  }
  if (a.is_whole() && b.is_whole()) return Value(std::int64_t{whole(a.whole(), b.whole())});
  return Value(double{real(a.number(), b.number())});
}

void check_divisor(const Value& divisor) {
  if ((divisor.is_whole() || divisor.real() != nullptr) && divisor.number() == 0) {
    template_error("division by zero");
  }
}

/// Python's // and % go down, not towards zero.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    return exact(0, a, [](auto x, auto y, auto* to) { return __builtin_sub_overflow(x, y, to); });
  }
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace

Value subtract(const Value& a, const Value& b) {
  return arithmetic(
      a, b,
      [](auto x, auto y) {
        return exact(x, y,
                     [](auto p, auto q, auto* to) { return __builtin_sub_overflow(p, q, to); });
      },
      [](double x, double y) { return x - y; });
}

Value multiply(const Value& a, const Value& b) {
  const Value& text = a.string() != nullptr ? a : b;
  const Value& count = a.string() != nullptr ? b : a;
  if (text.string() != nullptr && count.is_whole()) {
    const std::int64_t times = std::max<std::int64_t>(0, count.whole());
    if (times > 1 << 20 || times * static_cast<std::int64_t>(text.string()->size()) > 1 << 20) {
      template_error("a string is repeated too often");
    }
    std::string out;
    for (std::int64_t i = 0; i < times; ++i) out += *text.string();
    return out;
  }
  return arithmetic(
      a, b,
      [](auto x, auto y) {
        return exact(x, y,
                     [](auto p, auto q, auto* to) { return __builtin_mul_overflow(p, q, to); });
      },
      [](double x, double y) { return x * y; });
}

Value divide(const Value& a, const Value& b) {
  check_divisor(b);
  arithmetic(
      a, b, [](auto x, auto) { return x; }, [](double x, double) { return x; });
  return a.number() / b.number();
}

Value divide_down(const Value& a, const Value& b) {
  check_divisor(b);
  return arithmetic(a, b, floor_divide, [](double x, double y) { return std::floor(x / y); });
}

Value remainder(const Value& a, const Value& b) {
  if (a.string() != nullptr) return printed(a, b.is_tuple() ? *b.list() : List{b});
  check_divisor(b);
  return arithmetic(
      a, b,
      [](std::int64_t x, std::int64_t y) {
        return y == -1 ? std::int64_t{0} : x - floor_divide(x, y) * y;
      },
      [](double x, double y) { return x - std::floor(x / y) * y; });
}

Value power(const Value& a, const Value& b) {
  const double result = std::pow(a.number(), b.number());
  if (!a.is_whole() || !b.is_whole() || b.whole() < 0) return result;
  if (std::fabs(result) >= 9e15) template_error("a power is too large for a whole number");
  return static_cast<std::int64_t>(result);
}

Value concatenate(const Value& a, const Value& b) { return a.text() + b.text(); }

std::string escaped(const Value& value) {
  const std::string text = value.text();
  if (value.is_safe()) return text;
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

bool contains(const Value& needle, const Value& hay) {
  if (hay.string() != nullptr) {
    if (needle.string() == nullptr) {
      template_error(fmt::format("{} is looked for in a string", needle.kind()));
    }
    return hay.string()->find(*needle.string()) != std::string::npos;
  }
  const List all = elements(hay);
  return std::any_of(all.begin(), all.end(), [&](const Value& one) { return equal(one, needle); });
}

}  // namespace heddle::chat
