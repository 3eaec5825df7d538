#include "checkpoint/safetensors.h"

#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/strings.h"
#include "checkpoint/element_copy.h"

namespace heddle {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), path.string())) {
  by_name_.reserve(header_.entries.size());
  for (std::size_t i = 0; i < header_.entries.size(); ++i) {
    by_name_.emplace(header_.entries[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &header_.entries[at->second];
}

const SafetensorsEntry& SafetensorsFile::entry(std::string_view name) const {
  if (const SafetensorsEntry* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const auto& entry : header_.entries) names.push_back(entry.name);
  const std::string nearest = nearest_word(name, names);
  throw Error(ErrorCode::data, fmt::format("{}: there is no tensor \"{}\"", path().string(), name),
              nearest.empty() ? "" : fmt::format("the nearest name is \"{}\"", nearest));
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(static_cast<std::size_t>(header_.data_begin + entry.begin),
                               static_cast<std::size_t>(entry.end - entry.begin));
}

void SafetensorsFile::read(std::string_view name, const Tensor& out) const {
  const SafetensorsEntry& tensor = entry(name);
  const std::vector<std::int64_t> begin(tensor.sizes.size(), 0);
  read_slice(name, begin, tensor.sizes, out);
}

void SafetensorsFile::read_slice(std::string_view name, std::span<const std::int64_t> begin,
                                 std::span<const std::int64_t> end, const Tensor& out) const {
  const SafetensorsEntry& tensor = entry(name);
  require_convertible(tensor, out.dtype(), path().string());
  const Shape shape = tensor.shape();
  const auto dims = static_cast<std::size_t>(shape.dims());
  HEDDLE_CHECK(begin.size() == dims && end.size() == dims, "a slice of {} and {} dimensions of {}",
               begin.size(), end.size(), shape.text());
  std::vector<std::int64_t> extent(dims), origin(dims, 0);
  for (std::size_t d = 0; d < dims; ++d) {
    HEDDLE_CHECK(0 <= begin[d] && begin[d] <= end[d] && end[d] <= tensor.sizes[d],
                 "slice [{}, {}) of dimension {} of {}", begin[d], end[d], d, shape.text());
    extent[d] = end[d] - begin[d];
  }
  if (out.shape() != Shape(extent)) {
    fail(ErrorCode::data, "{}: tensor \"{}\" has shape {}, but {} is needed", path().string(), name,
         Shape(extent).text(), out.shape().text());
  }
  copy_box(bytes(tensor).data(), *tensor.dtype(), shape, begin, out, origin, extent);
}

void require_convertible(const TensorSpec& tensor, DType to, const std::string& where) {
  const auto from = tensor.dtype();
  if (!from || !can_convert(*from, to)) {
    fail(ErrorCode::data, "{}: tensor \"{}\" has dtype {}, which cannot be read as {}", where,
         tensor.name, tensor.dtype_name, name_of(to));
  }
}

}  // namespace heddle
