#include "base/check.h"

#include <cstring>

#include "base/error.h"

namespace heddle {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  const char* source = std::strstr(file, "src/");
  throw Error(ErrorCode::internal,
              fmt::format("{}:{}: `{}` does not hold: {}", source != nullptr ? source : file, line,
                          condition, detail),
              "this is a bug in heddle; please report it with the run file");
}

}  // namespace heddle
