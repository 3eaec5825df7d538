#pragma once

#include <filesystem>
#include <vector>

namespace heddle::cli {

/// What every two nodes send each other over.
class LinkTable {
 public:
  struct Link {
    double bytes_per_s = 0.0, latency_s = 0.0;
  };

  explicit LinkTable(int nodes)
      : nodes_(nodes), links_(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes)) {}

  int nodes() const { return nodes_; }
  Link& at(int from, int to) { return links_[index(from, to)]; }
  const Link& at(int from, int to) const { return links_[index(from, to)]; }
  double seconds(int from, int to, double bytes) const {
    const Link& link = at(from, to);
    return link.latency_s + bytes / link.bytes_per_s;
  }

 private:
  std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(nodes_) +
           static_cast<std::size_t>(to);
  }

  int nodes_;
  std::vector<Link> links_;
};

/// Reads what heddle bench link --pairs --json printed. A pair that was measured one way counts
/// both ways; Error(usage) names one that was not.
LinkTable read_link_table(const std::filesystem::path& file);

}  // namespace heddle::cli
