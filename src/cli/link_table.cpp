#include "cli/link_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"

namespace heddle::cli {
namespace {

constexpr int kMostNodes = 4096;

int node_in(const Json& link, const char* key) {
  if (!link.is_object() || !link.contains(key) || !link[key].is_number_integer()) return -1;
  const auto node = link[key].get<std::int64_t>();
  return node < 0 || node >= kMostNodes ? -1 : static_cast<int>(node);
}

double number_in(const Json& link, const char* key) {
  return link.contains(key) && link[key].is_number() ? link[key].get<double>() : -1.0;
}

}  // namespace

LinkTable read_link_table(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::usage, fmt::format("{} {}", file.string(), what),
                "give what heddle bench link --pairs --json prints: links with from, to, "
                "bytes_per_second and latency_seconds");
  };
  const Json json = parse_json(read_text_file(file), file.string());
  if (!json.is_object() || !json.contains("links") || !json["links"].is_array()) {
    refuse("has no links");
  }
  int nodes = 0;
  for (const Json& link : json["links"]) {
    nodes = std::max({nodes, node_in(link, "from") + 1, node_in(link, "to") + 1});
  }
  if (nodes < 2) refuse("has no links between nodes");
  LinkTable table(nodes);
  for (const Json& link : json["links"]) {
    const int from = node_in(link, "from"), to = node_in(link, "to");
    const LinkTable::Link read{number_in(link, "bytes_per_second"),
                               number_in(link, "latency_seconds")};
    if (from < 0 || to < 0 || read.bytes_per_s <= 0.0 || read.latency_s < 0.0) {
      refuse("has a link without from, to, bytes_per_second and latency_seconds");
    }
    table.at(from, to) = read;
    if (table.at(to, from).bytes_per_s <= 0.0) table.at(to, from) = read;
  }
  for (int from = 0; from < nodes; ++from) {
    for (int to = 0; to < from; ++to) {
      if (table.at(from, to).bytes_per_s <= 0.0) {
        refuse(fmt::format("has no link between nodes {} and {}", to, from));
      }
    }
  }
  return table;
}

}  // namespace heddle::cli
