#include "observe/page.h"

#include <fmt/format.h>

#include "observe/chart.h"
#include "observe/report_assets.h"

namespace heddle::observe {

std::string page_html(const Page& page) {
  // The policy is a second lock: even a mistake in escaping could load nothing from anywhere.
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
      "<title>{0} \xC2\xB7 Heddle</title><style>{1}</style>"
      "<script>addEventListener(\"error\", (event) => {{ "
      "document.documentElement.dataset.error = event.message; }});</script></head>\n<body><main>\n"
      "<header><p class=\"kind\">{2}</p><h1>{0}</h1><p class=\"model\">{3}</p></header>\n"
      "{4}<footer>{5}</footer>\n</main>\n<script>\"use strict\";\n{{{6}}}\n{{{7}}}\n"
      "document.documentElement.dataset.ready = \"yes\";</script>\n</body></html>\n",
      escape_html(page.title), kReportStyle, page.kind, escape_html(page.summary), page.body,
      page.footer, kChartScript, kTimelineScript);
}

std::string headline_figure(const std::string& name, const std::string& value,
                            const std::string& note) {
  return fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", name, value, note);
}

}  // namespace heddle::observe
