#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/formats/parquet_footer.h"

namespace heddle::parquet {

/// Numbers of a few bits each, in runs of one value and runs of packed ones, as levels and places
/// in dictionaries are stored.
class RunDecoder {
 public:
  RunDecoder() = default;
  /// At most 32 bits.
  RunDecoder(std::string_view bytes, int bits, const std::string& name)
      : bytes_(bytes), bits_(bits), name_(&name) {}
  std::uint32_t next();

 private:
  void begin_run();
  [[noreturn]] void refuse() const;

  std::string_view bytes_;
  int bits_ = 0;
  const std::string* name_ = nullptr;
  std::uint64_t left_ = 0;  // of the run
  bool is_packed_ = false;
  std::uint32_t value_ = 0;    // of a run of one value
  std::uint64_t waiting_ = 0;  // packed bits that were read
  int waiting_bits_ = 0;
};

/// A value of a column; text is valid until the next call of its Column.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string_view>;

/// The entries of one column in one group of rows, page by page: an entry has two levels, and a
/// value when its definition is the column's own. In memory are a page and the dictionary. Every
/// fault is an Error(data).
class Column {
 public:
  Column(const FileBytes& file, const std::string& name, const Node& node, const Chunk& chunk);

  bool has_entry() const { return entries_left_ > 0; }
  /// Of the current entry.
  int repeated() const { return repeated_; }
  int definition() const { return definition_; }
  /// The value of the current entry, to be taken once, where it has one.
  Value take_value();
  void advance();

 private:
  struct PageHeader;
  PageHeader read_header();
  void read_page();
  void read_dictionary(const PageHeader& header, std::string_view packed);
  void read_data_1(const PageHeader& header, std::string_view packed);
  void read_data_2(const PageHeader& header, std::string_view packed);
  void begin_values(int encoding, std::string_view bytes);
  void begin_deltas(int encoding, std::string_view bytes);
  Value plain(std::string_view& bytes) const;
  std::string unpacked(std::string_view packed, std::size_t size) const;
  void require_piece_fits(std::int64_t size, std::int64_t packed) const;
  void load_entry();
  [[noreturn]] void refuse(const std::string& why) const;

  const FileBytes& file_;
  const std::string& name_;
  const Node& node_;
  const Chunk& chunk_;
  std::uint64_t at_ = 0, end_ = 0;  // bytes of the file with pages to come
  std::int64_t entries_left_ = 0;   // of the column, the current one included
  std::int64_t page_left_ = 0;      // of the page, the current one included

  std::string dictionary_bytes_, page_;
  std::vector<Value> dictionary_;
  RunDecoder repetitions_, definitions_, places_;
  enum class Values { plain, dictionary, flags, decoded } values_ = Values::plain;
  std::string_view rest_;           // of plain values
  int bit_ = 0;                     // of plain flags
  std::vector<std::string> texts_;  // decoded of deltas
  std::vector<std::int64_t> numbers_;
  std::size_t next_decoded_ = 0;
  int repeated_ = 0, definition_ = 0;
};

}  // namespace heddle::parquet
