#pragma once

#include <string>

#include "tokenizer/processors/post_processor.h"
#include "tokenizer/section.h"

namespace heddle {

/// One function for each kind of `post_processor`, in a file of its own; registry.cpp lists them.
Surroundings read_bert_processor(const Section& step, std::size_t vocab_size);
Surroundings read_template_processor(const Section& step, std::size_t vocab_size);

/// The id, which must be in the vocabulary; `where` starts what is said otherwise.
std::int32_t known_id(const Json& value, const std::string& where, std::size_t vocab_size);

}  // namespace heddle
