#pragma once

#include <string>

#include "base/json.h"

namespace heddle {

/// Opens a page in headless Chromium, lets it run `script` (JavaScript that returns a value) once
/// it is complete, and gives back the value. Fails the test where there is no Chromium.
Json run_in_browser(const std::string& page, const std::string& script, int width = 1200);

}  // namespace heddle
