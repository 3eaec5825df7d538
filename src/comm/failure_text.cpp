#include "comm/failure_text.h"

namespace heddle {
namespace {

Error as_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorCode::internal, error.what()};
  } catch (...) {
    return {ErrorCode::internal, "an unknown exception"};
  }
}

}  // namespace

std::string failure_text(const std::exception_ptr& failure) { return as_error(failure).message(); }

std::string failure_text_with_hint(const std::exception_ptr& failure) {
  return as_error(failure).what();
}

ErrorCode failure_code(const std::exception_ptr& failure) { return as_error(failure).code(); }

}  // namespace heddle
