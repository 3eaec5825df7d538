#include "infer/prompt.h"

#include <algorithm>

#include "base/error.h"

namespace heddle {

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
    throw Error(ErrorCode::usage,
                fmt::format("the prompt has {} tokens, but the model has {} positions",
                            prompt.size(), spec.longest_sequence()),
                "shorten the prompt");
  }
}

}  // namespace heddle
