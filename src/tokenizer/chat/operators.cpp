#include "tokenizer/chat/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }

void check_divisor(const Value& divisor) {
  if ((divisor.is_whole() || divisor.real() != nullptr) && divisor.number() == 0) {
    template_error("division by zero");
  }
}

/// Python's // and % go down, not towards zero.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1) return static_cast<std::int64_t>(0 - bits(a));
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace

Value subtract(const Value& a, const Value& b) {
  return arithmetic(
      a, b, [](auto x, auto y) { return static_cast<std::int64_t>(bits(x) - bits(y)); },
      [](double x, double y) { return x - y; });
}

Value multiply(const Value& a, const Value& b) {
  const Value& text = a.string() != nullptr ? a : b;
  const Value& count = a.string() != nullptr ? b : a;
  if (text.string() != nullptr && count.is_whole()) {
    const std::int64_t times = std::max<std::int64_t>(0, count.whole());
    if (times * static_cast<std::int64_t>(text.string()->size()) > 1 << 20 || times > 1 << 20) {
      template_error("a string is repeated too often");
    }
    std::string out;
    for (std::int64_t i = 0; i < times; ++i) out += *text.string();
    return out;
  }
  return arithmetic(
      a, b, [](auto x, auto y) { return static_cast<std::int64_t>(bits(x) * bits(y)); },
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
  const bool is_whole = a.is_whole() && b.is_whole() && b.whole() >= 0 && std::fabs(result) < 9e15;
  return is_whole ? Value(static_cast<std::int64_t>(result)) : Value(result);
}

Value concatenate(const Value& a, const Value& b) { return a.text() + b.text(); }

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
