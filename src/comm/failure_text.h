#pragma once

#include <exception>
#include <string>

#include "base/error.h"

namespace heddle {

/// The message of an exception, without its hint, for the other ranks.
std::string failure_text(const std::exception_ptr& failure);
/// The same with its hint, for the user.
std::string failure_text_with_hint(const std::exception_ptr& failure);
ErrorCode failure_code(const std::exception_ptr& failure);

}  // namespace heddle
