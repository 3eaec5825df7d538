#pragma once

#include <string_view>

namespace heddle {

/// Hand-written equivalents of the pre-tokenizer patterns of the large families, some ten times
/// faster than a regular-expression engine. A scanner returns the end of the piece that starts at
/// `p` (p < end), always beyond `p`; calling it again from there walks the whole text.
using Scan = const char* (*)(const char* p, const char* end);

/// The pattern texts, as they stand in tokenizer.json files, that the scanners implement.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
/// CLIP's matches no spaces; its scanner ends pieces of spaces like others.
extern const std::string_view kClipPattern;

const char* scan_gpt2(const char* p, const char* end);
/// Also GPT-4's and Llama 3's relatives: at most three digits to a piece.
const char* scan_llama3(const char* p, const char* end);
/// Llama 3's with every digit alone.
const char* scan_qwen2(const char* p, const char* end);
const char* scan_clip(const char* p, const char* end);
/// Runs of numbers (category N*) and runs of everything else.
const char* scan_number_runs(const char* p, const char* end);
/// Every number character alone, and runs of everything else.
const char* scan_single_numbers(const char* p, const char* end);

/// The scanner for a pattern text, or nullptr when there is none.
Scan scanner_for(std::string_view pattern);

}  // namespace heddle
