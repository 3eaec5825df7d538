#pragma once

#include <string>

namespace heddle::observe {

/// One self-contained HTML page: no network, nothing beside it, light or dark as the reader has it.
/// Complete without scripts; they add zoom and what is under the pointer. When they have run,
/// <html> has the attribute data-ready, and data-error if something went wrong.
struct Page {
  std::string kind;     ///< above the title: "Heddle run report"
  std::string title;    ///< this and the next: text of the user's, which is escaped
  std::string summary;  ///< one line below the title
  std::string body;     ///< HTML
  std::string footer;   ///< HTML
};
std::string page_html(const Page& page);

/// One of the large numbers at the top of a page, to stand inside <dl class="figures">. HTML.
std::string headline_figure(const std::string& name, const std::string& value,
                            const std::string& note);

}  // namespace heddle::observe
