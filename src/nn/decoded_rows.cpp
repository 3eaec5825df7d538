#include "nn/decoded_rows.h"

namespace heddle {

DecodedRows::DecodedRows(std::vector<Sequence> sequences, int ranks, int own, bool stays,
                         Memory& host)
    : sequences_(std::move(sequences)),
      own_(own),
      stays_(stays),
      host_(host.for_host()),
      nowhere_(static_cast<std::size_t>(ranks)),
      places_(nowhere_) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    places_[static_cast<std::size_t>(sequences_[i].rank)].push_back(static_cast<int>(i));
  }
  make_batch();
}

void DecodedRows::make_batch() {
  const Shape shape{std::ssize(here()), 1};
  batch_ = {.ids = host_.alloc(shape, DType::i32, MemoryTag::data),
            .targets = {},
            .positions = host_.alloc(shape, DType::i32, MemoryTag::data),
            .first_key = {}};
  for (std::int64_t row = 0; row < std::ssize(here()); ++row) {
    const auto at = static_cast<std::size_t>(row);
    batch_.ids.host<std::int32_t>()[at] = sequence(row).token;
    batch_.positions.host<std::int32_t>()[at] = static_cast<std::int32_t>(cache(row).length());
  }
}

void DecodedRows::move_to(Places places) {
  places_ = std::move(places);
  make_batch();
}

void DecodedRows::store(int layer, const Tensor& k_B1GK, const Tensor& v_B1GK, Stream& stream) {
  for (std::int64_t row = 0; row < k_B1GK.size(0); ++row) {
    cache(row).store(layer, k_B1GK.slice(0, row, row + 1), v_B1GK.slice(0, row, row + 1), stream);
  }
  const auto at = static_cast<std::size_t>(layer);
  if (stored_.size() <= at) stored_.resize(at + 1, nowhere_);
  stored_[at] = places_;
}

}  // namespace heddle
