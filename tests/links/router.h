#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "links/pipe.h"

namespace heddle::links {

struct Packet {
  int from = 0, to = 0;
  std::string bytes;
};

/// Takes packets from rank to rank: out of the sender's node, over the link of the pair, into the
/// receiver's node, each a pipe of its own (at first without limit, delay or loss). Time is told to
/// it, so that it does the same every time.
class Router {
 public:
  using Deliver = std::function<void(const Packet&)>;

  Router(int ranks, std::uint64_t seed, Deliver deliver);

  /// Changes the links by one statement of README.md, such as "link 0,1 rate=10mbit delay=25ms" or
  /// "cut 1". Throws Error (usage) and changes nothing when it is not one.
  void apply(const std::string& statement);

  void send(Packet packet, Time now);
  /// Moves on everything that is due, in the order of time.
  void advance(Time now);
  /// When the next packet is due.
  std::optional<Time> next() const;

 private:
  using Pairs = std::vector<std::pair<int, int>>;
  struct UnderWay {
    Packet packet;
    int hops_done = 0;
  };

  std::shared_ptr<Pipe>& link(int from, int to) { return links_[from * ranks_ + to]; }
  std::vector<int> ranks_in(const std::string& set) const;
  Pairs pairs_of(const std::string& place) const;
  /// The link of these pairs alone: what they share already, or a new one like that of the first.
  Pipe& link_of(const Pairs& pairs);
  void cut(const std::string& place, bool is_cut);
  void move_on(UnderWay under_way, Time now);

  int ranks_;
  std::uint64_t seed_, links_made_ = 0;
  Deliver deliver_;
  std::vector<Pipe> out_, in_;                ///< of each rank's node
  std::vector<std::shared_ptr<Pipe>> links_;  ///< of each pair, by link(); some are shared
  std::vector<char> is_cut_;                  ///< of each pair
  std::multimap<Time, UnderWay> under_way_;   ///< equal times stay in order
};

}  // namespace heddle::links
