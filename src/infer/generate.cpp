#include "infer/generate.h"

#include <algorithm>

#include "infer/prompt.h"
#include "tensor/transfer.h"

namespace heddle {

std::vector<std::int32_t> generate(const Model& model, std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options, const OnToken& on_token,
                                   Stream& stream, Memory& memory) {
  check_prompt(prompt, model.spec());
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  const auto room = model.spec().longest_sequence() - static_cast<std::int64_t>(prompt.size());
  const std::int64_t count = std::min(options.max_tokens, room);
  std::optional<KvCache> cache;
  const KvCache::Shape cache_shape =
      model.cache_shape(1, static_cast<std::int64_t>(prompt.size()) + count);
  if (options.uses_cache) cache.emplace(cache_shape, memory);
  const auto& rope = model.spec().rope;
  const auto turning = rope ? rope->turning_length() : std::nullopt;
  for (std::int64_t made = 0; made < count; ++made) {
    // Behind it what the cache has of earlier tokens was turned by other angles: begin again.
    if (cache && cache->length() == turning) cache.emplace(cache_shape, memory);
    const std::int64_t known = cache ? cache->length() : 0;
    const auto fresh = std::span(tokens).subspan(static_cast<std::size_t>(known));
    const Tensor logits = to_host(model.logits(one_sequence(fresh, known, memory), true,
                                               cache ? &*cache : nullptr, stream, memory),
                                  stream);
    const std::int32_t token = sample_token(logits.host<float>(), options.sampling,
                                            static_cast<std::uint64_t>(tokens.size()));
    tokens.push_back(token);
    const bool goes_on = !on_token || on_token(token);
    if (!goes_on || std::ranges::count(options.end_tokens, token) > 0) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace heddle
