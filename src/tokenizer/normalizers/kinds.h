#pragma once

#include "tokenizer/normalizers/normalizer.h"
#include "tokenizer/section.h"

namespace heddle {

using NormalizerPtr = std::unique_ptr<const Normalizer>;

/// One function for each kind of `normalizer`; registry.cpp lists them. A kind has a file of its
/// own, unless its neighbours differ from it in a word only.
NormalizerPtr make_bert_normalizer(const Section& step);
NormalizerPtr make_byte_level_normalizer(const Section& step);
NormalizerPtr make_lowercase(const Section& step);
NormalizerPtr make_nfc(const Section& step);
NormalizerPtr make_nfd(const Section& step);
NormalizerPtr make_nfkc(const Section& step);
NormalizerPtr make_nfkd(const Section& step);
NormalizerPtr make_nmt(const Section& step);
NormalizerPtr make_precompiled(const Section& step);
NormalizerPtr make_prepend(const Section& step);
NormalizerPtr make_replace(const Section& step);
NormalizerPtr make_strip(const Section& step);
NormalizerPtr make_strip_accents(const Section& step);

}  // namespace heddle
