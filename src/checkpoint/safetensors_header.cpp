#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/json_events.h"

namespace heddle {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

struct DTypeName {
  std::string_view name;
  int bits;
  std::optional<DType> ours;
};

constexpr std::array<DTypeName, 21> kDTypes = {{
    {"F64", 64, DType::f64},      {"F32", 32, DType::f32},      {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},    {"I64", 64, DType::i64},      {"I32", 32, DType::i32},
    {"U8", 8, DType::u8},         {"U16", 16, DType::u16},      {"U32", 32, DType::u32},
    {"I16", 16, std::nullopt},    {"I8", 8, std::nullopt},      {"U64", 64, std::nullopt},
    {"BOOL", 8, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
}};

const DTypeName* find_dtype(std::string_view name) {
  const auto at = std::find_if(kDTypes.begin(), kDTypes.end(),
                               [&](const DTypeName& dtype) { return dtype.name == name; });
  return at == kDTypes.end() ? nullptr : &*at;
}

/// Reads `{"name": {"dtype": ..., "shape": [...], "data_offsets": [...]}, "__metadata__": {...}}`.
class HeaderEvents : public StrictJsonEvents {
 public:
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start: return enter(State::names);
      case State::name: return enter(is_metadata_ ? State::metadata : State::fields);
      default: return unexpected("an object");
    }
  }

  bool key(string_t& key) override {
    if (state_ == State::names) {
      if (!names_.insert(key).second) return refuse(fmt::format("\"{}\" is there twice", key));
      is_metadata_ = key == "__metadata__";
      entry_ = {};
      entry_.name = std::move(key);
      has_dtype_ = has_shape_ = false;
      offsets_.clear();
      has_offsets_ = false;
      return enter(State::name);
    }
    if (state_ == State::metadata) {
      metadata_key_ = std::move(key);
      if (header.metadata.count(metadata_key_) != 0) {
        return refuse(fmt::format("\"__metadata__\" has \"{}\" twice", metadata_key_));
      }
      return enter(State::metadata_value);
    }
    const auto field = [&](bool& seen, State next) {
      if (seen) return refuse(fmt::format("{} has \"{}\" twice", tensor(), key));
      seen = true;
      return enter(next);
    };
    if (key == "dtype") return field(has_dtype_, State::dtype);
    if (key == "shape") return field(has_shape_, State::shape);
    if (key == "data_offsets") return field(has_offsets_, State::offsets);
    return refuse(fmt::format("{} has an unknown field \"{}\"", tensor(), key));
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata_value) {
      header.metadata.emplace(std::move(metadata_key_), std::move(value));
      return enter(State::metadata);
    }
    if (state_ != State::dtype) return unexpected("a string");
    entry_.dtype_name = std::move(value);
    return enter(State::fields);
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape) return enter(State::shape_values);
    if (state_ == State::offsets) return enter(State::offset_values);
    return unexpected("an array");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::offset_values) {
      offsets_.push_back(value);
      return true;
    }
    if (state_ != State::shape_values) return unexpected("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse(fmt::format("{} has a dimension of {}", tensor(), value));
    }
    entry_.sizes.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool end_array() override { return enter(State::fields); }

  bool end_object() override {
    if (state_ == State::names) return enter(State::end);
    if (state_ == State::metadata) return enter(State::names);
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return refuse(fmt::format("{} has no \"{}\"", tensor(),
                                !has_dtype_   ? "dtype"
                                : !has_shape_ ? "shape"
                                              : "data_offsets"));
    }
    if (offsets_.size() != 2) {
      return refuse(fmt::format("\"data_offsets\" of {} holds {} numbers instead of 2", tensor(),
                                offsets_.size()));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (!safetensors_bits(entry_.dtype_name)) entry_.opaque_bytes = entry_.end - entry_.begin;
    header.entries.push_back(std::move(entry_));
    return enter(State::names);
  }

 protected:
  std::string place() const override {
    switch (state_) {
      case State::start: return "the header";
      case State::name:
        return is_metadata_ ? std::string("\"__metadata__\"") : "the description of " + tensor();
      case State::metadata:
      case State::metadata_value: return "\"__metadata__\"";
      case State::dtype: return "\"dtype\" of " + tensor();
      case State::shape:
      case State::shape_values: return "\"shape\" of " + tensor();
      case State::offsets:
      case State::offset_values: return "\"data_offsets\" of " + tensor();
      default: return "the header";
    }
  }

 private:
  enum class State {
    start,
    names,
    name,
    metadata,
    metadata_value,
    fields,
    dtype,
    shape,
    shape_values,
    offsets,
    offset_values,
    end
  };
  bool enter(State next) {
    state_ = next;
    return true;
  }
  std::string tensor() const { return fmt::format("tensor \"{}\"", entry_.name); }

  State state_ = State::start;
  bool is_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::string metadata_key_;
  SafetensorsEntry entry_;
  std::vector<std::uint64_t> offsets_;
  std::unordered_set<std::string> names_;
};

void check_entry(const SafetensorsEntry& entry, std::uint64_t data_bytes,
                 const std::string& where) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(ErrorCode::data,
         "{}: tensor \"{}\" claims bytes {} to {} of {}: the file is truncated or "
         "its header is wrong",
         where, entry.name, entry.begin, entry.end, data_bytes);
  }
  const DTypeName* dtype = find_dtype(entry.dtype_name);
  if (!can_be_counted(entry.sizes)) {
    fail(ErrorCode::data, "{}: the shape of tensor \"{}\" is too large to be true", where,
         entry.name);
  }
  if (dtype == nullptr) return;  // opaque: only its range can be checked
  const std::int64_t bits = entry.count() * dtype->bits;
  if (bits % 8 != 0 || static_cast<std::uint64_t>(bits / 8) != entry.end - entry.begin) {
    fail(ErrorCode::data, "{}: tensor \"{}\" has {} bytes, but its shape and dtype {} need {}",
         where, entry.name, entry.end - entry.begin, entry.dtype_name, (bits + 7) / 8);
  }
}

/// Every byte of the data belongs to exactly one tensor.
void check_coverage(const SafetensorsHeader& header, std::uint64_t data_bytes,
                    const std::string& where) {
  std::uint64_t at = 0;
  std::string_view previous = "the header";
  for (const auto& entry : header.entries) {
    if (entry.begin != at) {
      fail(ErrorCode::data, "{}: tensor \"{}\" begins at byte {}, but {} ends at byte {} ({})",
           where, entry.name, entry.begin, previous, at, entry.begin < at ? "overlap" : "gap");
    }
    at = entry.end;
    previous = entry.name;
  }
  if (at != data_bytes) {
    fail(ErrorCode::data, "{}: the tensors take {} bytes, but {} bytes follow the header", where,
         at, data_bytes);
  }
}

}  // namespace

bool can_be_counted(std::span<const std::int64_t> sizes) {
  // Zeros left out: the product bounds every stride, which must not overflow either.
  std::int64_t bits = 64;
  for (const std::int64_t size : sizes) {
    if (size != 0 && __builtin_mul_overflow(bits, size, &bits)) return false;
  }
  return true;
}

std::optional<DType> TensorSpec::dtype() const {
  const DTypeName* dtype = find_dtype(dtype_name);
  return dtype == nullptr ? std::nullopt : dtype->ours;
}

bool TensorSpec::is_opaque() const {
  static constexpr std::array<std::string_view, 4> kUncomputed = {"BOOL", "I8", "I16", "U64"};
  return !dtype() && std::ranges::find(kUncomputed, dtype_name) == kUncomputed.end();
}

Shape TensorSpec::shape() const {
  if (sizes.size() > static_cast<std::size_t>(Shape::kMaxDims)) {
    fail(ErrorCode::data, "tensor \"{}\" has {} dimensions; at most {} can be used", name,
         sizes.size(), Shape::kMaxDims);
  }
  return Shape(sizes);
}

std::int64_t TensorSpec::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
    count *= size;
  }
  return count;
}

std::uint64_t TensorSpec::size_bytes() const {
  const auto bits = safetensors_bits(dtype_name);
  if (!bits) return opaque_bytes;
  return static_cast<std::uint64_t>(count()) * static_cast<std::uint64_t>(*bits) / 8;
}

TensorSpec tensor_spec(std::string name, DType dtype, const Shape& shape) {
  return {std::move(name),
          std::string(safetensors_name_of(dtype)),
          {shape.sizes().begin(), shape.sizes().end()},
          0};
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length) {
    fail(ErrorCode::data, "{}: not a safetensors file: {} bytes are too few", where, file.size());
  }
  std::memcpy(&length, file.data(), sizeof length);
  const std::uint64_t after_length = file.size() - sizeof length;
  if (length > kMaxSafetensorsHeaderBytes) {
    fail(ErrorCode::data,
         "{}: not a safetensors file: its header would have {} bytes, more than {}", where, length,
         kMaxSafetensorsHeaderBytes);
  }
  if (length > after_length) {
    fail(ErrorCode::data, "{}: truncated: the header has {} bytes, but only {} follow", where,
         length, after_length);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length,
                              static_cast<std::size_t>(length));
  if (text.empty() || text.front() != '{') {
    fail(ErrorCode::data, "{}: not a safetensors file: the header does not begin with '{{'", where);
  }
  HeaderEvents events;
  parse_json_events(text, events, where);
  SafetensorsHeader header = std::move(events.header);
  header.data_begin = sizeof length + length;
  const std::uint64_t data_bytes = after_length - length;
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  for (const auto& entry : header.entries) check_entry(entry, data_bytes, where);
  check_coverage(header, data_bytes, where);
  return header;
}

std::string_view safetensors_name_of(DType dtype) {
  for (const auto& known : kDTypes) {
    if (known.ours == dtype) return known.name;
  }
  HEDDLE_CHECK(false, "no safetensors name for {}", name_of(dtype));
  return {};
}

std::optional<int> safetensors_bits(std::string_view dtype_name) {
  const DTypeName* dtype = find_dtype(dtype_name);
  return dtype == nullptr ? std::nullopt : std::optional(dtype->bits);
}

}  // namespace heddle
