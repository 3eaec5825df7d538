#include "data/formats/parquet_footer.h"

namespace heddle::parquet {
namespace {

using Type = Thrift::Type;
constexpr int kDeepestSchema = 64;

/// An element as it stands in the file: the tree in the order of its walk.
struct Element {
  Node node;
  std::int64_t children = 0;
};

Element read_element(Thrift& thrift) {
  Element element;
  thrift.walk([&](Thrift::Field field) {
    switch (field.id) {
      case 1: {
        const std::int64_t type = thrift.integer(field);
        if (type < 0 || type > 7) thrift.refuse(fmt::format("a column of unknown type {}", type));
        element.node.physical = static_cast<Physical>(type);
        return true;
      }
      case 3: {
        const std::int64_t repetition = thrift.integer(field);
        if (repetition < 0 || repetition > 2) thrift.refuse("a column of unknown repetition");
        element.node.repetition = static_cast<Repetition>(repetition);
        return true;
      }
      case 4: element.node.name = thrift.text(field); return true;
      case 5: element.children = thrift.integer(field); return true;
      case 6: element.node.is_list |= thrift.integer(field) == 3; return true;
      case 10:
        if (field.type != Type::structure) return false;
        thrift.walk([&](Thrift::Field logical) {
          element.node.is_list |= logical.id == 3;
          return false;
        });
        return true;
      default: return false;
    }
  });
  return element;
}

class SchemaBuilder {
 public:
  SchemaBuilder(const Thrift& thrift, std::vector<Element>& elements)
      : thrift_(thrift), elements_(elements) {}

  Node build(const Node* parent, int depth) {
    if (next_ == elements_.size()) thrift_.refuse("its schema ends too early");
    if (depth > kDeepestSchema) thrift_.refuse("its schema is nested too deeply");
    Element& element = elements_[next_++];
    Node node = std::move(element.node);
    if (parent != nullptr) {
      node.definition = parent->definition + (node.repetition != Repetition::required);
      node.repeated = parent->repeated + (node.repetition == Repetition::repeated);
    }
    node.column = columns_;
    const bool is_column = node.physical.has_value();
    if (is_column != (element.children == 0) || element.children < 0) {
      thrift_.refuse(
          fmt::format("\"{}\" of its schema is neither a column nor a group", node.name));
    }
    if (is_column) ++columns_;
    for (std::int64_t i = 0; i < element.children; ++i) {
      node.children.push_back(build(&node, depth + 1));
    }
    return node;
  }
  bool is_complete() const { return next_ == elements_.size(); }
  std::size_t columns() const { return columns_; }

 private:
  const Thrift& thrift_;
  std::vector<Element>& elements_;
  std::size_t next_ = 0, columns_ = 0;
};

std::optional<BlockPacking> packing_of(std::int64_t codec) {
  switch (codec) {
    case 0: return BlockPacking::none;
    case 1: return BlockPacking::snappy;
    case 2: return BlockPacking::gzip;
    case 6: return BlockPacking::zstd;
    case 7: return BlockPacking::lz4_raw;
    default: return std::nullopt;  // LZO, Brotli, and LZ4 with frames of its own
  }
}

Chunk read_chunk(Thrift& thrift, std::uint64_t file_bytes) {
  Chunk chunk;
  bool has_meta = false;
  std::int64_t data_at = -1, dictionary_at = 0, size = -1;
  const auto read_meta = [&](Thrift::Field field) {
    switch (field.id) {
      case 1: chunk.physical = static_cast<Physical>(thrift.integer(field)); return true;
      case 4: {
        const std::int64_t codec = thrift.integer(field);
        chunk.packing = packing_of(codec);
        chunk.codec = static_cast<int>(codec);
        return true;
      }
      case 5: chunk.values = thrift.integer(field); return true;
      case 7: size = thrift.integer(field); return true;
      case 9: data_at = thrift.integer(field); return true;
      case 11: dictionary_at = thrift.integer(field); return true;
      default: return false;
    }
  };
  thrift.walk([&](Thrift::Field field) {
    if (field.id == 1) thrift.refuse("its columns lie in other files");
    if (field.id != 3 || field.type != Type::structure) return false;
    has_meta = true;
    thrift.walk(read_meta);
    return true;
  });
  if (!has_meta) thrift.refuse("a column has no description (it may be encrypted)");
  const std::int64_t begin = dictionary_at > 0 ? std::min(dictionary_at, data_at) : data_at;
  const auto bytes = static_cast<std::int64_t>(file_bytes);
  if (begin < 0 || size < 0 || begin > bytes || size > bytes - begin || chunk.values < 0) {
    thrift.refuse(fmt::format("a column of {} values lies at byte {} with {} bytes in a file of {}",
                              chunk.values, begin, size, bytes));
  }
  chunk.begin = static_cast<std::uint64_t>(begin);
  chunk.size = static_cast<std::uint64_t>(size);
  return chunk;
}

RowGroup read_group(Thrift& thrift, std::uint64_t file_bytes) {
  RowGroup group;
  thrift.walk([&](Thrift::Field field) {
    if (field.id == 3) {
      group.rows = thrift.integer(field);
      return true;
    }
    if (field.id != 1) return false;
    const std::size_t count = thrift.list(field, Type::structure);
    for (std::size_t i = 0; i < count; ++i) group.chunks.push_back(read_chunk(thrift, file_bytes));
    return true;
  });
  return group;
}

/// Checks that groups have the columns of the schema.
void check_columns(const Node& node, const Footer& footer, const Thrift& thrift) {
  for (const Node& child : node.children) check_columns(child, footer, thrift);
  if (!node.physical) return;
  for (const RowGroup& group : footer.groups) {
    if (group.chunks[node.column].physical != *node.physical) {
      thrift.refuse(fmt::format("column \"{}\" has two types", node.name));
    }
  }
}

}  // namespace

Footer read_footer(const FileBytes& file, const std::string& name) {
  constexpr std::uint64_t kEnd = 8;
  if (file.size() < kEnd + 4) refuse_damaged(name, "Parquet file", "it has only a few bytes");
  const std::string end = file.read(file.size() - kEnd, kEnd);
  ByteCursor cursor(end, name, "Parquet file");
  const auto size = cursor.take<std::uint32_t>();
  const auto magic = cursor.take_bytes(4);
  if (magic == "PARE") cursor.refuse("it is encrypted, which is not read");
  if (magic != "PAR1") cursor.refuse("its end is missing");
  if (size > file.size() - kEnd - 4) cursor.refuse("its metadata is longer than the file");
  const std::string bytes = file.read(file.size() - kEnd - size, size);

  Thrift thrift(bytes, name);
  Footer footer;
  std::vector<Element> elements;
  thrift.walk([&](Thrift::Field field) {
    if (field.id != 2 && field.id != 4) return false;
    const std::size_t count = thrift.list(field, Type::structure);
    for (std::size_t i = 0; i < count; ++i) {
      if (field.id == 2) {
        elements.push_back(read_element(thrift));
      } else {
        footer.groups.push_back(read_group(thrift, file.size()));
      }
    }
    return true;
  });
  if (elements.empty()) thrift.refuse("it has no schema");
  elements.front().node.physical.reset();
  SchemaBuilder builder(thrift, elements);
  footer.schema = builder.build(nullptr, 0);
  footer.columns = builder.columns();
  if (!builder.is_complete()) thrift.refuse("its schema has more elements than its tree");
  for (const RowGroup& group : footer.groups) {
    if (group.chunks.size() != footer.columns || group.rows < 0) {
      thrift.refuse(fmt::format("a group of rows has {} columns, the schema {}",
                                group.chunks.size(), footer.columns));
    }
  }
  check_columns(footer.schema, footer, thrift);
  return footer;
}

}  // namespace heddle::parquet
