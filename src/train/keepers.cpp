#include "train/keepers.h"

#include <fmt/format.h>

#include "comm/agree.h"

namespace heddle {

Keepers Keepers::by_site(World& world, int site) {
  Keepers keepers(world);
  keepers.own_ = std::make_shared<World>(world.all().split(site, world.rank(), "site"));
  keepers.site_ = site;
  return keepers;
}

void Keepers::decide(const std::function<void()>& decide) const {
  if (!are_apart()) return decide_on_first(*all_, decide);
  std::optional<Error> failure;
  if (is_first()) {
    try {
      decide();
    } catch (const Error& error) {
      failure = error.within(fmt::format("site {}", site_));
    }
  }
  throw_any(*all_, failure);
}

}  // namespace heddle
