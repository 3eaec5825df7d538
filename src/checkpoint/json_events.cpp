#include "checkpoint/json_events.h"

#include "base/error.h"

namespace heddle {

bool StrictJsonEvents::parse_error(std::size_t position, const std::string&,
                                   const nlohmann::json::exception& reason) {
  std::string why = reason.what();
  if (const auto at = why.rfind(": "); at != std::string::npos) why = why.substr(at + 2);
  return refuse(fmt::format("not valid JSON at byte {}: {}", position, why));
}

void parse_json_events(std::string_view text, StrictJsonEvents& events, const std::string& where) {
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    fail(ErrorCode::data, "{}: {}", where, events.problem());
  }
}

}  // namespace heddle
