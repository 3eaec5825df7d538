#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "codec/codec.h"

namespace heddle::codec {

/// "int8", "int8:256", "zfp:16:1": a name, and parameters that may be left out from the last on.
/// Throws Error(usage) that says what is wrong with the text and what would be right.
std::unique_ptr<const Codec> make_codec(std::string_view text);

/// How a codec is written, and what it does, for help and documentation.
struct CodecHelp {
  std::string_view form;  ///< "int8[:BLOCK]"
  std::string_view does;
  std::string_view usual;  ///< as make_codec names it without parameters
};
const std::vector<CodecHelp>& known_codecs();

}  // namespace heddle::codec
