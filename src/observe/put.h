#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace heddle::observe {

/// Formats to the end of a text: pages are put together from many small pieces.
template <class... Args>
void put(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

}  // namespace heddle::observe
