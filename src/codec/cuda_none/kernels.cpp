// Stands in for cuda/ where heddle is built without CUDA.
#include "base/error.h"
#include "codec/bf16.h"
#include "codec/block_int.h"
#include "codec/e3m0.h"
#include "codec/fp8.h"
#include "codec/lossless.h"
#include "codec/sign.h"
#include "codec/top_k.h"
#include "codec/zfp.h"

namespace heddle::codec::cuda {
namespace {

[[noreturn]] void refuse(const Codec& codec) {
  throw Error(ErrorCode::resources,
              fmt::format("codec {} cannot run on CUDA devices: this heddle was built without CUDA",
                          codec.name()),
              "use run.device = \"cpu\", or send without codec");
}

}  // namespace

#define HEDDLE_REFUSED(Name)                                                    \
  void encode(const Name& codec, const EncodeCall&, Stream&) { refuse(codec); } \
  void decode(const Name& codec, const DecodeCall&, Stream&) { refuse(codec); }
HEDDLE_CODECS(HEDDLE_REFUSED)
#undef HEDDLE_REFUSED

}  // namespace heddle::codec::cuda
