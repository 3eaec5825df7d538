#pragma once

#include <nlohmann/json_fwd.hpp>

namespace heddle {
using Json = nlohmann::ordered_json;
}
