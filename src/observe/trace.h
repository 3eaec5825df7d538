#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::observe {

/// Work that took place on one stream of one rank. Times are in seconds from the trace's start.
struct Span {
  std::string name;      ///< "F3", "all_reduce"
  std::string category;  ///< "action", "layer", "collective"
  int rank = 0;
  int stream = 0;
  double begin_seconds = 0;
  double duration_seconds = 0;
  std::uint64_t bytes = 0;  ///< payload of a message or collective; 0: none, or not known
  std::int64_t step = 0;    ///< of the run, from 1; 0: not known
};

/// A timeline in the Chrome trace form that Perfetto opens: a process per rank, a thread per
/// stream. Measured and simulated runs write the same form, so that they can be laid side by side.
/// Not thread-safe: each rank or thread collects its own spans, one adds them.
class Trace {
 public:
  void add(Span span) { spans_.push_back(std::move(span)); }
  void name_stream(int rank, int stream, std::string name) {
    stream_names_[{rank, stream}] = std::move(name);
  }

  const std::vector<Span>& spans() const { return spans_; }
  /// By (rank, stream); streams that nobody named are not there.
  const std::map<std::pair<int, int>, std::string>& stream_names() const { return stream_names_; }

  std::string json() const;
  /// Whole or not at all; Error(resources) when it cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<Span> spans_;
  std::map<std::pair<int, int>, std::string> stream_names_;
};

/// What `write` wrote. Complete events ("ph":"X") become spans and thread names stream names; other
/// kinds of events, which other programs may have put there, are passed over. Error(data) names the
/// file and what is wrong: not readable, not JSON, no list of events, an event without name, place
/// or times.
Trace read_trace(const std::filesystem::path& path);
/// The same of text that is no file: `name` stands for it in errors.
Trace parse_trace(std::string_view text, const std::string& name);

}  // namespace heddle::observe
