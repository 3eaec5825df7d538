#include "infer/generate.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

MicroBatch one_sequence(std::span<const std::int32_t> ids, std::int64_t first_position,
                        Memory& memory) {
  const Tensor tensor = memory.for_host().alloc({1, static_cast<std::int64_t>(ids.size())},
                                                DType::i32, MemoryTag::data);
  std::ranges::copy(ids, tensor.host<std::int32_t>().begin());
  return plain_batch(tensor, {}, first_position, memory);
}

void check_prompt(std::span<const std::int32_t> prompt, const ModelSpec& spec) {
  if (prompt.empty()) {
    throw Error(ErrorCode::usage, "the prompt is empty", "give at least one token to continue");
  }
  for (const std::int32_t id : prompt) {
    if (id < 0 || id >= spec.vocab) {
      throw Error(ErrorCode::data,
                  fmt::format("token {} of the prompt is outside the model's vocabulary of {}", id,
                              spec.vocab),
                  "use the tokenizer that belongs to the model");
    }
  }
  if (static_cast<std::int64_t>(prompt.size()) > spec.longest_sequence()) {
    const std::string limit =
        spec.longest_sequence() < spec.max_positions
            ? fmt::format("its sliding window of attention, {} tokens, is all that heddle does",
                          spec.longest_sequence())
            : fmt::format("the model has {} positions", spec.max_positions);
    throw Error(ErrorCode::usage,
                fmt::format("the prompt has {} tokens, but {}", prompt.size(), limit),
                "shorten the prompt");
  }
}

}  // namespace

std::vector<std::int32_t> generate(const Model& model, std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options, const OnToken& on_token,
                                   Stream& stream, Memory& memory) {
  check_prompt(prompt, model.spec());
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  const auto room = model.spec().longest_sequence() - static_cast<std::int64_t>(prompt.size());
  const std::int64_t count = std::min(options.max_tokens, room);
  std::optional<KvCache> cache;
  if (options.uses_cache) {
    cache.emplace(model.cache_shape(1, static_cast<std::int64_t>(prompt.size()) + count), memory);
  }
  for (std::int64_t made = 0; made < count; ++made) {
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
