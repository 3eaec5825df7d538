#include "nn/rope_tables.h"

namespace heddle {

RopeTables::RopeTables(std::int64_t usual, ops::RopePairs pairs, ByLength by_length)
    : pairs_(pairs), by_length_(std::move(by_length)), usual_class_(by_length_->class_of(usual)) {
  usual_ = by_length_->make(usual_class_);
}

const RopeTable& RopeTables::of_length(std::int64_t length) const {
  if (!by_length_) return usual_;
  const std::int64_t wanted = by_length_->class_of(length);
  if (wanted == usual_class_) return usual_;
  if (!other_.cos_PR.defined() || wanted != other_class_) {
    other_ = by_length_->make(wanted);
    other_class_ = wanted;
  }
  return other_;
}

}  // namespace heddle
