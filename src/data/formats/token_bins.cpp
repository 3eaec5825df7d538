#include <algorithm>
#include <array>
#include <limits>

#include "data/formats/file_bytes.h"
#include "data/formats/readers.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

using std::string_view_literals::operator""sv;

/// Longer documents are cut, so that memory has a bound.
constexpr std::size_t kMostTokens = std::size_t{1} << 20;

/// What tokens are stored as.
enum class Stored { u8, i8, i16, i32, i64, u16, u32 };

std::size_t bytes_of(Stored type) {
  switch (type) {
    case Stored::u8:
    case Stored::i8: return 1;
    case Stored::i16:
    case Stored::u16: return 2;
    case Stored::i32:
    case Stored::u32: return 4;
    case Stored::i64: return 8;
  }
  return 0;
}

/// Tokens as they are stored become ours; what is negative or too large becomes -1, which is in no
/// vocabulary.
std::vector<std::int32_t> tokens_of(std::string_view bytes, Stored type) {
  std::vector<std::int32_t> tokens(bytes.size() / bytes_of(type));
  const auto convert = [&]<class T>(T) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      const bool fits = std::in_range<std::int32_t>(value) && value >= 0;
      tokens[i] = fits ? static_cast<std::int32_t>(value) : -1;
    }
  };
  switch (type) {
    case Stored::u8: convert(std::uint8_t{}); break;
    case Stored::i8: convert(std::int8_t{}); break;
    case Stored::i16: convert(std::int16_t{}); break;
    case Stored::u16: convert(std::uint16_t{}); break;
    case Stored::i32: convert(std::int32_t{}); break;
    case Stored::u32: convert(std::uint32_t{}); break;
    case Stored::i64: convert(std::int64_t{}); break;
  }
  return tokens;
}

/// Tokens of nanoGPT (u16 and nothing else) and of llm.c (a header of 256 i32 before them). A
/// document ends with the end token where that is known; where not, every million tokens.
class NanogptTokens : public RecordReader {
 public:
  NanogptTokens(const InputFile& file, std::optional<std::int32_t> end_token)
      : name_(file.path.string()), bytes_(file.path), end_token_(end_token) {
    read_header();
    const std::uint64_t left = bytes_.size() - at_;
    if (left % bytes_of(type_) != 0) {
      refuse_damaged(
          name_, "file of tokens",
          fmt::format("{} bytes are no whole number of tokens of {}", left, bytes_of(type_)));
    }
  }

  bool next(Record& record) override {
    std::vector<std::int32_t> tokens;
    while (tokens.size() < kMostTokens && fill()) {
      const auto begin = chunk_.begin() + static_cast<std::ptrdiff_t>(taken_);
      const std::size_t room = std::min(kMostTokens - tokens.size(), chunk_.size() - taken_);
      const auto limit = begin + static_cast<std::ptrdiff_t>(room);
      auto end = end_token_ ? std::find(begin, limit, *end_token_) : limit;
      const bool has_ended = end != limit;
      if (has_ended) ++end;
      tokens.insert(tokens.end(), begin, end);
      taken_ += static_cast<std::size_t>(end - begin);
      if (has_ended) break;
    }
    if (tokens.empty()) return false;
    record = {.form = Record::Form::tokens, .tokens = std::move(tokens), .number = ++count_};
    return true;
  }

  std::uint64_t position() const override { return at_; }

 private:
  void read_header() {
    constexpr std::size_t kHeader = 1024;
    constexpr std::int32_t kWithU16 = 20240520, kWithU32 = 20240801;
    if (bytes_.size() < kHeader) return;
    const std::string header = bytes_.read(0, kHeader);
    ByteCursor cursor(header, name_, "file of tokens of llm.c");
    const auto magic = cursor.take<std::int32_t>();
    if (magic != kWithU16 && magic != kWithU32) return;
    cursor.take<std::int32_t>();  // the version goes with the magic number
    const auto count = cursor.take<std::uint32_t>();
    type_ = magic == kWithU16 ? Stored::u16 : Stored::u32;
    at_ = kHeader;
    if (count * bytes_of(type_) != bytes_.size() - kHeader) {
      cursor.refuse(fmt::format("its header promises {} tokens, {} bytes follow", count,
                                bytes_.size() - kHeader));
    }
  }

  /// Whether there are tokens in chunk_ that were not taken.
  bool fill() {
    if (taken_ < chunk_.size()) return true;
    const std::uint64_t size = std::min<std::uint64_t>(bytes_.size() - at_, 1 << 20);
    if (size == 0) return false;
    chunk_ = tokens_of(bytes_.read(at_, size), type_);
    at_ += size;
    taken_ = 0;
    return true;
  }

  const std::string name_;
  const FileBytes bytes_;
  const std::optional<std::int32_t> end_token_;
  Stored type_ = Stored::u16;
  std::uint64_t at_ = 0;
  std::vector<std::int32_t> chunk_;
  std::size_t taken_ = 0;
  std::int64_t count_ = 0;
};

/// Megatron-LM's indexed dataset: tokens in a .bin, and in an .idx the length and place of every
/// sequence and the first sequence of every document.
class MegatronTokens : public RecordReader {
 public:
  explicit MegatronTokens(const InputFile& file)
      : index_name_(with_extension(file.path, ".idx").string()),
        index_(with_extension(file.path, ".idx")),
        bin_(with_extension(file.path, ".bin")),
        file_size_(file.size_bytes) {
    read_header();
  }

  bool next(Record& record) override {
    std::vector<std::int32_t> tokens;
    while (tokens.empty() && next_document()) take_sequences(tokens);
    if (tokens.empty()) {
      is_read_ = true;
      return false;
    }
    record = {.form = Record::Form::tokens, .tokens = std::move(tokens), .number = ++count_};
    return true;
  }

  std::uint64_t position() const override {
    if (is_read_ || sequences_ == 0) return file_size_;
    const double share = static_cast<double>(sequence_) / static_cast<double>(sequences_);
    return static_cast<std::uint64_t>(share * static_cast<double>(file_size_));
  }

 private:
  static fs::path with_extension(fs::path path, const char* extension) {
    return path.replace_extension(extension);
  }
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_damaged(index_name_, "index of Megatron-LM", why);
  }
  template <class T>
  T at(std::uint64_t place, std::uint64_t index) const {
    T value;
    index_.read_into(place + index * sizeof(T), {reinterpret_cast<char*>(&value), sizeof value});
    return value;
  }

  void read_header() {
    constexpr std::size_t kHeader = 9 + 8 + 1 + 8 + 8;
    if (index_.size() < kHeader) refuse("it is shorter than its header");
    const std::string header = index_.read(0, kHeader);
    ByteCursor cursor(header, index_name_, "index of Megatron-LM");
    if (cursor.take_bytes(9) != "MMIDIDX\0\0"sv) refuse("it does not begin with MMIDIDX");
    const auto version = cursor.take<std::uint64_t>();
    if (version != 1) refuse(fmt::format("version {} is not the known version 1", version));
    const auto code = cursor.take<std::uint8_t>();
    static constexpr std::array<std::optional<Stored>, 9> kTypes = {
        std::nullopt, Stored::u8,   Stored::i8,   Stored::i16, Stored::i32,
        Stored::i64,  std::nullopt, std::nullopt, Stored::u16};
    if (code >= kTypes.size() || !kTypes[code]) {
      refuse(fmt::format("tokens of type {} are no whole numbers", code));
    }
    type_ = *kTypes[code];
    sequences_ = cursor.take<std::uint64_t>();
    documents_ = cursor.take<std::uint64_t>();
    const std::uint64_t room = index_.size() - kHeader;
    if (sequences_ > room / 12 || documents_ > (room - sequences_ * 12) / 8) {
      refuse(fmt::format("it promises {} sequences and {} documents, which do not fit into it",
                         sequences_, documents_));
    }
    if (documents_ == 0) refuse("it has no documents");
    sizes_at_ = kHeader;
    pointers_at_ = sizes_at_ + sequences_ * 4;
    documents_at_ = pointers_at_ + sequences_ * 8;
  }

  /// Sets end_ to where the next document's sequences end; false when there is none. The list of
  /// documents has their first sequences and, last, the number of all.
  bool next_document() {
    if (sequence_ < end_) return true;  // a long one goes on
    if (document_ + 1 >= documents_) {
      if (end_ == sequences_) return false;
      refuse(fmt::format("its documents end at sequence {} of {}", end_, sequences_));
    }
    const auto begin = at<std::uint64_t>(documents_at_, document_);
    end_ = at<std::uint64_t>(documents_at_, document_ + 1);
    if (begin != sequence_ || end_ < begin || end_ > sequences_) {
      refuse(fmt::format("document {} has sequences {} to {} of {}", document_, begin, end_,
                         sequences_));
    }
    ++document_;
    return true;
  }

  void take_sequences(std::vector<std::int32_t>& tokens) {
    for (; sequence_ < end_ && tokens.size() < kMostTokens; ++sequence_) {
      const auto size = at<std::int32_t>(sizes_at_, sequence_);
      const auto place = at<std::uint64_t>(pointers_at_, sequence_);
      const std::uint64_t bytes = static_cast<std::uint64_t>(std::max(size, 0)) * bytes_of(type_);
      if (size < 0 || place > bin_.size() || bytes > bin_.size() - place) {
        refuse(fmt::format("sequence {} has {} tokens at byte {} of a .bin of {} bytes", sequence_,
                           size, place, bin_.size()));
      }
      const auto taken = tokens_of(bin_.read(place, bytes), type_);
      tokens.insert(tokens.end(), taken.begin(), taken.end());
    }
  }

  const std::string index_name_;
  const FileBytes index_, bin_;
  const std::uint64_t file_size_;
  Stored type_ = Stored::u16;
  std::uint64_t sequences_ = 0, documents_ = 0;
  std::uint64_t sizes_at_ = 0, pointers_at_ = 0, documents_at_ = 0;
  std::uint64_t sequence_ = 0, end_ = 0, document_ = 0;  // to be read next
  bool is_read_ = false;
  std::int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> read_nanogpt(const InputFile& file,
                                           std::optional<std::int32_t> end_token) {
  return std::make_unique<NanogptTokens>(file, end_token);
}

std::unique_ptr<RecordReader> read_megatron(const InputFile& file) {
  return std::make_unique<MegatronTokens>(file);
}

}  // namespace heddle
