#include "browser/chromium.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <memory>
#include <utility>

#include "base/file_system.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 65536> buffer;
  while (const std::size_t size = fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    output.append(buffer.data(), size);
  }
  return output;
}

/// The value of an attribute as Chromium writes it.
std::string attribute(const std::string& dom, const std::string& name) {
  const std::string open = " " + name + "=\"";
  const auto begin = dom.find(open);
  if (begin == std::string::npos) return {};
  std::string value = dom.substr(begin + open.size());
  value.resize(std::min(value.size(), value.find('"')));
  for (const auto& [code, character] :
       {std::pair{"&quot;", "\""}, {"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}) {
    for (auto at = value.find(code); at != std::string::npos; at = value.find(code, at + 1)) {
      value.replace(at, std::string(code).size(), character);
    }
  }
  return value;
}

}  // namespace

Json run_in_browser(const std::string& page, const std::string& script, int width) {
  const TemporaryFolder folder;
  const std::string end = "</body>";
  std::string with_script = page;
  with_script.insert(page.rfind(end),
                     fmt::format("<script>document.documentElement.dataset.result = "
                                 "JSON.stringify((() => {{ {} }})());</script>",
                                 script));
  const auto file = folder.path() / "page.html";
  write_file_atomically(real_file_system(), file, with_script);
  const std::string dom = output_of(fmt::format(
      "timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--no-first-run --disable-extensions --disable-background-networking "
      "--host-resolver-rules='MAP * ~NOTFOUND' --user-data-dir={0}/profile --window-size={1},900 "
      "--dump-dom file://{2} 2>{0}/errors",
      folder.path().string(), width, file.string()));
  const std::string result = attribute(dom, "data-result");
  EXPECT_NE(result, "") << "Chromium gave no answer (./scripts/setup.sh --browser installs it): "
                        << read_text_file(folder.path() / "errors") << dom.substr(0, 300);
  return result.empty() ? Json() : parse_json(result, "the browser's answer");
}

}  // namespace heddle
