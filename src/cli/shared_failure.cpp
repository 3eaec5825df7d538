#include "cli/shared_failure.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "comm/failure_text.h"
#include "tensor/memory.h"

namespace heddle::cli {
namespace {

/// What ranks compare.
struct Card {
  std::int32_t status = 0;
  std::array<char, 2044> text = {};
  bool operator==(const Card&) const = default;
};

}  // namespace

int tell_shared_failure(World& world, const std::exception_ptr& failure) {
  const std::string text = failure ? failure_text_with_hint(failure) : "";
  Memory memory;
  Stream stream(1);
  const auto bytes = static_cast<std::int64_t>(sizeof(Card));
  const Tensor own = memory.zeros({1, bytes}, DType::u8, MemoryTag::communication);
  const Tensor all = memory.zeros({world.size(), bytes}, DType::u8, MemoryTag::communication);
  Card card;
  if (failure) card.status = static_cast<std::int32_t>(failure_code(failure));
  std::copy_n(text.begin(), std::min(text.size(), card.text.size()), card.text.begin());
  std::memcpy(own.bytes(), &card, sizeof(Card));
  world.all().all_gather(own, all, stream).wait(stream);
  std::vector<Card> cards(static_cast<std::size_t>(world.size()));
  std::memcpy(cards.data(), all.bytes(), cards.size() * sizeof(Card));
  const auto bad = [](const Card& one) { return one.status != 0; };
  const auto first = std::find_if(cards.begin(), cards.end(), bad);
  if (first == cards.end()) return 0;
  const auto is_own = [&](const Card& one) { return one == card; };
  if (failure && std::find_if(cards.begin(), cards.end(), is_own) == cards.begin() + world.rank()) {
    const bool is_everywhere = std::all_of(cards.begin(), cards.end(), is_own);
    log_line(LogLevel::error,
             is_everywhere ? text : fmt::format("rank {}: {}", world.rank(), text));
  }
  world.all().barrier();  // a rank that ends may take the others along before they have spoken
  return first->status;
}

}  // namespace heddle::cli
