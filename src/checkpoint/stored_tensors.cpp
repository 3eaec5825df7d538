#include "checkpoint/stored_tensors.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "checkpoint/element_copy.h"

namespace heddle {
namespace {

using Coordinates = std::vector<std::int64_t>;

/// The common box of [a_begin, a_end) and [b_begin, b_end); false when it is empty.
bool intersect(std::span<const std::int64_t> a_begin, std::span<const std::int64_t> a_end,
               std::span<const std::int64_t> b_begin, std::span<const std::int64_t> b_end,
               Coordinates& begin, Coordinates& extent) {
  begin.resize(a_begin.size());
  extent.resize(a_begin.size());
  for (std::size_t d = 0; d < a_begin.size(); ++d) {
    begin[d] = std::max(a_begin[d], b_begin[d]);
    extent[d] = std::min(a_end[d], b_end[d]) - begin[d];
    if (extent[d] <= 0) return false;
  }
  return true;
}

Coordinates difference(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  Coordinates result(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) result[d] = a[d] - b[d];
  return result;
}

struct SliceNote {
  std::string name;
  Coordinates sizes, begin;
};

Coordinates coordinates_of(const Json& note, const char* key, const std::string& where) {
  Coordinates values;
  const auto at = note.find(key);
  if (at == note.end() || !at->is_array()) fail(ErrorCode::data, "{}: no \"{}\"", where, key);
  for (const Json& value : *at) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      fail(ErrorCode::data, "{}: \"{}\" is not a list of sizes", where, key);
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

/// Parses a "slice:" note and checks that the box lies inside its tensor.
SliceNote parse_note(const std::string& text, const SafetensorsEntry& entry,
                     const std::string& file) {
  const std::string where = fmt::format("{}: the slice note of \"{}\"", file, entry.name);
  const Json json = parse_json(text, where);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) {
    fail(ErrorCode::data, "{} has no \"name\"", where);
  }
  SliceNote note{json["name"], coordinates_of(json, "shape", where),
                 coordinates_of(json, "begin", where)};
  bool inside = note.sizes.size() == entry.sizes.size() && note.begin.size() == note.sizes.size();
  for (std::size_t d = 0; inside && d < note.sizes.size(); ++d) {
    inside = note.begin[d] <= note.sizes[d] && entry.sizes[d] <= note.sizes[d] - note.begin[d];
  }
  if (!inside) fail(ErrorCode::data, "{} does not fit its tensor", where);
  if (!can_be_counted(note.sizes)) fail(ErrorCode::data, "{} is too large to be true", where);
  return note;
}

void require_all(std::int64_t found, std::int64_t wanted, const std::string& place,
                 std::string_view name) {
  if (found == wanted) return;
  fail(ErrorCode::data, "{}: {} of {} elements asked of tensor \"{}\" are not stored", place,
       wanted - found, wanted, name);
}

}  // namespace

StoredTensors::StoredTensors(std::span<const std::shared_ptr<const SafetensorsFile>> files) {
  for (const auto& file : files) {
    for (const auto& entry : file->entries()) add(file, entry);
  }
}

void StoredTensors::add(const std::shared_ptr<const SafetensorsFile>& file,
                        const SafetensorsEntry& entry) {
  const auto note_at = file->metadata().find(std::string(kSlicePrefix) + entry.name);
  const SliceNote note =
      note_at == file->metadata().end()
          ? SliceNote{entry.name, entry.sizes, Coordinates(entry.sizes.size(), 0)}
          : parse_note(note_at->second, entry, file->path().string());
  if (note.sizes.size() > static_cast<std::size_t>(Shape::kMaxDims))
    static_cast<void>(entry.shape());
  Box box{file, &entry, note.begin, note.begin};
  for (std::size_t d = 0; d < box.end.size(); ++d) box.end[d] += entry.sizes[d];

  const auto [at, is_new] = tensors_.try_emplace(note.name, StoredTensor{Shape(note.sizes), {}});
  if (is_new) names_.push_back(note.name);
  StoredTensor& tensor = at->second;
  if (!is_new && tensor.shape != Shape(note.sizes)) {
    fail(ErrorCode::data, "{}: tensor \"{}\" has shape {} here and {} in {}", file->path().string(),
         note.name, Shape(note.sizes).text(), tensor.shape.text(),
         tensor.boxes.front().file->path().string());
  }
  Coordinates begin, extent;
  for (const Box& other : tensor.boxes) {
    if (box.begin.empty() || intersect(box.begin, box.end, other.begin, other.end, begin, extent)) {
      fail(ErrorCode::data, "{}: a part of tensor \"{}\" is also in {}", file->path().string(),
           note.name, other.file->path().string());
    }
  }
  tensor.boxes.push_back(std::move(box));
}

const StoredTensors::StoredTensor& StoredTensors::tensor(std::string_view name) const {
  if (const auto at = tensors_.find(name); at != tensors_.end()) return at->second;
  const std::string nearest = nearest_word(name, names_);
  throw Error(ErrorCode::data, fmt::format("the checkpoint has no tensor \"{}\"", name),
              nearest.empty() ? "" : fmt::format("the nearest name is \"{}\"", nearest));
}

TensorSpec StoredTensors::spec(std::string_view name) const {
  const StoredTensor& stored = tensor(name);
  TensorSpec spec = *stored.boxes.front().entry;
  spec.name = name;
  spec.sizes.assign(stored.shape.sizes().begin(), stored.shape.sizes().end());
  return spec;
}

StoredTensors::Content StoredTensors::content(std::string_view name, Memory& memory) const {
  const StoredTensor& stored = tensor(name);
  const Box& first = stored.boxes.front();
  if (first.entry->shape() == stored.shape) return {first.file->bytes(*first.entry), {}};
  const auto dtype = first.entry->dtype();
  if (!dtype) {
    fail(ErrorCode::data, "{}: tensor \"{}\" of dtype {} is in parts, which cannot be joined",
         first.file->path().string(), name, first.entry->dtype_name);
  }
  std::int64_t found = 0;  // boxes do not overlap; memory for what is not there may be too much
  for (const Box& box : stored.boxes) found += box.entry->count();
  require_all(found, stored.shape.count(), first.file->path().parent_path().string(), name);
  const Tensor joined = memory.alloc(stored.shape, *dtype, MemoryTag::data);
  read(name, joined);
  return {{joined.bytes(), joined.size_bytes()}, joined};
}

void StoredTensors::read(std::string_view name, const Tensor& out) const {
  const Shape& shape = tensor(name).shape;
  const Coordinates begin(static_cast<std::size_t>(shape.dims()), 0);
  read_slice(name, begin, shape.sizes(), out);
}

void StoredTensors::read_slice(std::string_view name, std::span<const std::int64_t> begin,
                               std::span<const std::int64_t> end, const Tensor& out) const {
  const StoredTensor& stored = tensor(name);
  const std::string place = stored.boxes.front().file->path().parent_path().string();
  const auto dims = static_cast<std::size_t>(stored.shape.dims());
  HEDDLE_CHECK(begin.size() == dims && end.size() == dims, "a slice of {} dimensions of {} {}",
               begin.size(), name, stored.shape.text());
  const Shape wanted(difference(end, begin));
  if (out.shape() != wanted) {
    fail(ErrorCode::data, "{}: tensor \"{}\" has shape {}, but {} is needed", place, name,
         wanted.text(), out.shape().text());
  }
  std::int64_t found = 0;
  Coordinates common, extent;
  for (const Box& box : stored.boxes) {
    if (!intersect(begin, end, box.begin, box.end, common, extent)) continue;
    require_convertible(*box.entry, out.dtype(), box.file->path().string());
    copy_box(box.file->bytes(*box.entry).data(), *box.entry->dtype(), box.entry->shape(),
             difference(common, box.begin), out, difference(common, begin), extent);
    found += Shape(extent).count();
  }
  require_all(found, wanted.count(), place, name);
}

}  // namespace heddle
