#pragma once

#include <string>
#include <vector>

namespace heddle {

/// How sites that train one model keep it together over a link between them. A layer is exchanged
/// every `every` steps: with 1 this is data parallelism, with more DiLoCo, and with several
/// fragments Streaming DiLoCo, where layer l belongs to fragment l mod `fragments` and fragment p
/// has its turn floor(p every / fragments) steps after the first.
struct LocalMethod {
  int layers = 24;
  double parameters = 1e9;  ///< of the whole model, spread evenly over the layers
  double step_seconds = 1.0;
  int every = 1;
  int fragments = 1;
  int delay = 0;       ///< steps of computation that an exchange may last without being waited for
  double bits = 16.0;  ///< of a value on the link
  int sites = 2;

  /// Of one exchange of one layer, over the link of a site: a ring, or the direct form.
  double layer_bits() const;
  double bits_per_step() const;  ///< on average
  double largest_bits() const;   ///< of what falls due in one step
};

/// What is wrong with the values, each with what would be right; empty where nothing is.
std::vector<std::string> problems_of(const LocalMethod& method);

struct LocalLink {
  double bits_per_second = 1e9;
  double latency = 0.0;  ///< seconds by which an exchange ends later than its bytes have left
};

/// What the steps become once they repeat themselves.
struct PlayedLocal {
  double step_seconds = 0.0;
  double utilisation = 0.0;  ///< computing over all
};

/// Plays a site's steps (play_sites): a third of a step is forward, layer by layer, two thirds
/// backward in reverse order. A layer that is due enters the link when its backward ends; the link
/// carries one exchange after another. Forward of a layer waits for its exchange of `delay` + 1
/// steps before.
PlayedLocal play_local(const LocalMethod& method, const LocalLink& link);

}  // namespace heddle
