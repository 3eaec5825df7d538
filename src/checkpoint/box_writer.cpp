#include "checkpoint/box_writer.h"

#include "base/check.h"
#include "base/error.h"

namespace heddle {
namespace {

/// The runs of a box in its tensor, as parts whose places count from the tensor's first byte.
std::vector<FilePart> parts_of(const Shape& whole, const Shape& begin, const Shape& extent,
                               std::uint64_t element) {
  const int dims = whole.dims();
  if (dims == 0) return {{.at = 0, .run = element}};
  std::vector<std::uint64_t> stride(static_cast<std::size_t>(dims), element);
  for (int dim = dims - 2; dim >= 0; --dim) {
    const auto d = static_cast<std::size_t>(dim);
    stride[d] = stride[d + 1] * static_cast<std::uint64_t>(whole[dim + 1]);
  }
  // Dimensions behind the first one that the box has not whole are one run.
  int inner = dims - 1;
  while (inner > 0 && extent[inner] == whole[inner]) --inner;
  const auto size = [&](int dim) { return static_cast<std::uint64_t>(extent[dim]); };
  FilePart first{.run = size(inner) * stride[static_cast<std::size_t>(inner)]};
  for (int dim = 0; dim < dims; ++dim) {
    first.at += static_cast<std::uint64_t>(begin[dim]) * stride[static_cast<std::size_t>(dim)];
  }
  if (inner > 0) {
    first.count = size(inner - 1);
    first.stride = stride[static_cast<std::size_t>(inner - 1)];
  }
  std::vector<FilePart> parts = {first};
  for (int dim = inner - 2; dim >= 0; --dim) {  // further dimensions are parts of their own
    const std::vector<FilePart> below = std::move(parts);
    parts.clear();
    for (std::uint64_t i = 0; i < size(dim); ++i) {
      for (FilePart part : below) {
        part.at += i * stride[static_cast<std::size_t>(dim)];
        parts.push_back(part);
      }
    }
  }
  return parts;
}

/// Makes one part of two when the second goes on where the first ends.
bool join(FilePart& part, const FilePart& next) {
  if (part.stride == 0 && next.stride == 0 && next.at == part.at + part.run) {
    part.run += next.run;
    return true;
  }
  const bool goes_on = part.stride != 0 && part.stride == next.stride && part.run == next.run &&
                       next.at == part.at + part.count * part.stride;
  if (goes_on) part.count += next.count;
  return goes_on;
}

}  // namespace

BoxWriter::BoxWriter(FileSystem& files, std::filesystem::path folder,
                     const CheckpointLayout& layout)
    : files_(files), folder_(std::move(folder)), layout_(layout), open_(layout.files().size()) {}

BoxWriter::OpenFile& BoxWriter::open(std::size_t file) {
  OpenFile& open = open_[file];
  if (open.file) return open;
  const std::filesystem::path path = folder_ / layout_.files()[file].path;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw Error(ErrorCode::resources, fmt::format("{} is not there", path.string()),
                "rank 0 made it: the run folder must be on a file system that all ranks share");
  }
  open.file = files_.open(path);
  return open;
}

void BoxWriter::write(OpenFile& file, const FilePart& part, std::span<const std::byte> bytes) {
  for (std::uint64_t i = 0; i < part.count; ++i) {
    file.file->write_at(part.at + i * part.stride, bytes.subspan(i * part.run, part.run));
  }
  if (file.parts.empty() || !join(file.parts.back(), part)) {
    file.parts.push_back(part);
    file.last = std::make_unique<Checksum>();
  }
  file.last->update(bytes);
  file.parts.back().checksum = file.last->value();
}

void BoxWriter::write_headers() {
  for (std::size_t i = 0; i < layout_.files().size(); ++i) {
    const std::string& header = layout_.files()[i].header;
    write(open(i), {.run = header.size()}, std::as_bytes(std::span(header)));
  }
}

void BoxWriter::write(const std::string& kind, const std::string& name, const Shape& begin,
                      const Tensor& box) {
  if (box.count() == 0) return;
  const CheckpointLayout::Place& place = layout_.place(kind, name);
  HEDDLE_CHECK(
      box.is_contiguous() && box.device().kind == Device::Kind::cpu && box.dtype() == place.dtype,
      "a box of {} {} is not as the file has it", kind, name);
  OpenFile& file = open(place.file);
  std::span<const std::byte> left{box.bytes(), box.size_bytes()};
  for (FilePart part : parts_of(place.shape, begin, box.shape(), size_of(place.dtype))) {
    part.at += place.at;
    write(file, part, left.first(part.run * part.count));
    left = left.subspan(part.run * part.count);
  }
}

std::vector<FileRecord> BoxWriter::finish() {
  std::vector<FileRecord> records;
  for (std::size_t i = 0; i < open_.size(); ++i) {
    OpenFile& open = open_[i];
    if (!open.file) continue;
    open.file->sync();
    open.file->close();
    const CheckpointLayout::File& file = layout_.files()[i];
    records.push_back({.path = file.path,
                       .size_bytes = file.size_bytes,
                       .checksum = 0,
                       .parts = std::move(open.parts)});
  }
  open_.clear();
  return records;
}

}  // namespace heddle
