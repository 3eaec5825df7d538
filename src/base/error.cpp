#include "base/error.h"

namespace heddle {

Error::Error(ErrorCode code, std::string message, std::string hint)
    : code_(code), message_(std::move(message)), hint_(std::move(hint)) {
  what_ = hint_.empty() ? message_ : message_ + "; " + hint_;
}

Error Error::within(const std::string& context) const {
  return Error(code_, context + ": " + message_, hint_);
}

}  // namespace heddle
