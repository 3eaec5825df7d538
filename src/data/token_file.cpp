#include "data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::array<char, 8> kMagic = {'H', 'D', 'L', 'T', 'O', 'K', 'E', 'N'};
constexpr std::uint32_t kPlainVersion = 1, kAnswersVersion = 2;
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kHashedHeaderBytes = 56;

/// The header as it lies in the file.
struct RawHeader {
  std::array<char, 8> magic;
  std::uint32_t version, token_bytes;
  std::uint64_t vocab_size, token_count, document_count, fingerprint, checksum, header_checksum;
};
static_assert(sizeof(RawHeader) == kHeaderBytes);

template <class T>
T load(std::span<const std::byte> bytes, std::int64_t index) {
  T value;  // the bytes of a span given by a caller need not be aligned
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

std::uint64_t hash_of_header(const RawHeader& raw) { return XXH64(&raw, kHashedHeaderBytes, 0); }

/// A bit for each token, in words of 64.
std::size_t answer_bytes(std::uint64_t token_count) { return (token_count + 63) / 64 * 8; }

std::size_t padding_after(std::size_t bytes) { return (8 - bytes % 8) % 8; }

DType dtype_for(std::int64_t vocab_size) { return vocab_size <= 65536 ? DType::u16 : DType::u32; }

}  // namespace

std::uint64_t content_hash(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

bool is_token_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.extension() == ".tokens" || path.extension() == ".tok") return true;
  std::array<char, kMagic.size()> first{};
  return std::ifstream(path, std::ios::binary).read(first.data(), first.size()) && first == kMagic;
}

void require_same_tokenizer(const TokenFile& a, const TokenFile& b) {
  const TokenFileHeader &one = a.header(), &two = b.header();
  const bool known = one.tokenizer_fingerprint != 0 && two.tokenizer_fingerprint != 0;
  if (one.vocab_size == two.vocab_size &&
      (!known || one.tokenizer_fingerprint == two.tokenizer_fingerprint)) {
    return;
  }
  throw Error(ErrorCode::data,
              fmt::format("{} (vocabulary {}, fingerprint {:016x}) and {} (vocabulary {}, "
                          "fingerprint {:016x}) come from different tokenizers",
                          a.name(), one.vocab_size, one.tokenizer_fingerprint, b.name(),
                          two.vocab_size, two.tokenizer_fingerprint),
              "make them with the same tokenizer");
}

void TokenFile::refuse(const std::string& what) const {
  throw Error(ErrorCode::data, fmt::format("{}: not a usable token file: {}", name_, what),
              "make it again with `heddle tokenize`");
}

TokenFile TokenFile::open(const fs::path& path, Check check) {
  auto map = std::make_shared<const MappedFile>(path);
  TokenFile file = parse(map->bytes(), path.string(), check);
  file.map_ = std::move(map);
  return file;
}

TokenFile TokenFile::parse(std::span<const std::byte> bytes, const std::string& name, Check check) {
  TokenFile file;
  file.name_ = name;
  file.parse_header(bytes);
  const std::span<const std::byte> payload = bytes.subspan(kHeaderBytes);
  const std::size_t token_bytes =
      static_cast<std::size_t>(file.token_count()) * size_of(file.header_.dtype);
  file.tokens_ = payload.first(token_bytes);
  const auto documents = static_cast<std::size_t>(file.document_count()) * 8;
  file.document_starts_ = payload.subspan(token_bytes + padding_after(token_bytes), documents);
  if (file.has_answers()) {
    file.answers_ = payload.last(answer_bytes(static_cast<std::uint64_t>(file.token_count())));
  }
  file.check_document_index();
  if (check == Check::content) file.check_content(payload);
  return file;
}

void TokenFile::parse_header(std::span<const std::byte> bytes) {
  if (bytes.empty()) refuse("the file is empty");
  const std::size_t magic_bytes = std::min(bytes.size(), kMagic.size());
  if (std::memcmp(bytes.data(), kMagic.data(), magic_bytes) != 0) {
    refuse("it does not begin with HDLTOKEN");
  }
  if (bytes.size() < kHeaderBytes) {
    refuse(fmt::format("{} bytes are less than the header of {}", bytes.size(), kHeaderBytes));
  }
  const auto raw = load<RawHeader>(bytes, 0);
  if (raw.version != kPlainVersion && raw.version != kAnswersVersion) {
    refuse(fmt::format("version {} is none of the supported versions {} and {}", raw.version,
                       kPlainVersion, kAnswersVersion));
  }
  if (raw.header_checksum != hash_of_header(raw)) refuse("the header's checksum does not match");
  if (raw.token_bytes != 2 && raw.token_bytes != 4) {
    refuse(fmt::format("{} bytes per token; 2 or 4 are possible", raw.token_bytes));
  }
  const std::uint64_t largest_vocab =
      raw.token_bytes == 2 ? 65536 : std::numeric_limits<std::int32_t>::max();
  if (raw.vocab_size == 0 || raw.vocab_size > largest_vocab) {
    refuse(
        fmt::format("a vocabulary of {} with {} bytes per token", raw.vocab_size, raw.token_bytes));
  }
  // Counts are compared with what the file can hold first, so that no product below overflows.
  const std::uint64_t room = bytes.size() - kHeaderBytes;
  if (raw.token_count > room / raw.token_bytes || raw.document_count > room / 8) {
    refuse(fmt::format("the header promises {} tokens and {} documents, the file has only {} bytes",
                       raw.token_count, raw.document_count, bytes.size()));
  }
  const std::size_t token_bytes = raw.token_count * raw.token_bytes;
  const bool has_answers = raw.version == kAnswersVersion;
  const std::size_t expected = kHeaderBytes + token_bytes + padding_after(token_bytes) +
                               raw.document_count * 8 +
                               (has_answers ? answer_bytes(raw.token_count) : 0);
  if (expected != bytes.size()) {
    refuse(fmt::format("{} tokens and {} documents take {} bytes, the file has {}", raw.token_count,
                       raw.document_count, expected, bytes.size()));
  }
  header_ = {.dtype = raw.token_bytes == 2 ? DType::u16 : DType::u32,
             .vocab_size = static_cast<std::int64_t>(raw.vocab_size),
             .token_count = static_cast<std::int64_t>(raw.token_count),
             .document_count = static_cast<std::int64_t>(raw.document_count),
             .tokenizer_fingerprint = raw.fingerprint,
             .checksum = raw.checksum,
             .has_answers = has_answers};
}

void TokenFile::check_document_index() const {
  if ((document_count() == 0) != (token_count() == 0)) {
    refuse(fmt::format("{} tokens in {} documents", token_count(), document_count()));
  }
  std::uint64_t previous = 0;
  for (std::int64_t i = 0; i < document_count(); ++i) {
    const auto start = load<std::uint64_t>(document_starts_, i);
    const bool ascends = i == 0 ? start == 0 : start > previous;
    if (!ascends || start >= static_cast<std::uint64_t>(token_count())) {
      refuse(fmt::format("document {} cannot begin at token {} (the one before: {}; tokens: {})", i,
                         start, previous, token_count()));
    }
    previous = start;
  }
}

void TokenFile::check_content(std::span<const std::byte> payload) const {
  if (content_hash(payload) != header_.checksum) {
    refuse("the checksum does not match: the content was changed after writing");
  }
  std::vector<std::int32_t> buffer(std::size_t{1} << 16);
  for (std::int64_t begin = 0; begin < token_count();) {
    const auto count =
        std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), token_count() - begin);
    read(begin, std::span(buffer).first(static_cast<std::size_t>(count)));
    begin += count;
  }
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  HEDDLE_CHECK(begin >= 0 && count <= token_count() - begin, "tokens [{}, {}) of {}", begin,
               begin + count, token_count());
  std::uint32_t largest = 0;
  const auto copy = [&]<class T>(T) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t token = load<T>(tokens_, begin + i);
      largest = std::max(largest, token);
      out[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(token);
    }
  };
  header_.dtype == DType::u16 ? copy(std::uint16_t{}) : copy(std::uint32_t{});
  if (largest >= static_cast<std::uint64_t>(header_.vocab_size)) {
    refuse(fmt::format("token {} between {} and {} is outside the vocabulary of {}", largest, begin,
                       begin + count, header_.vocab_size));
  }
}

void TokenFile::read_answers(std::int64_t begin, std::span<bool> out) const {
  HEDDLE_CHECK(has_answers() && begin >= 0 && std::ssize(out) <= token_count() - begin,
               "answers [{}, {}) of {}", begin, begin + std::ssize(out), token_count());
  for (bool& is_answer : out) {
    is_answer = (load<std::uint64_t>(answers_, begin / 64) >> (begin % 64) & 1) != 0;
    ++begin;
  }
}

std::int64_t TokenFile::document_start(std::int64_t index) const {
  HEDDLE_CHECK(index >= 0 && index <= document_count(), "document {} of {}", index,
               document_count());
  if (index == document_count()) return token_count();
  return static_cast<std::int64_t>(load<std::uint64_t>(document_starts_, index));
}

std::int64_t TokenFile::document_of(std::int64_t token) const {
  HEDDLE_CHECK(token >= 0 && token < token_count(), "token {} of {}", token, token_count());
  std::int64_t low = 0, high = document_count();  // start(low) <= token < start(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= token ? low : high) = middle;
  }
  return low;
}

namespace {

/// Collects the payload's hash on a first pass and writes on a second, because a WritableFile only
/// appends and the checksum stands in the header.
class Sink {
 public:
  Sink() : state_(XXH64_createState(), XXH64_freeState) { XXH64_reset(state_.get(), 0); }
  explicit Sink(WritableFile& file) : Sink() { file_ = &file; }

  void append(std::span<const std::byte> bytes) {
    if (file_ != nullptr) {
      file_->append(bytes);
    } else if (!bytes.empty()) {
      XXH64_update(state_.get(), bytes.data(), bytes.size());
    }
  }
  std::uint64_t hash() const { return XXH64_digest(state_.get()); }

 private:
  std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state_;
  WritableFile* file_ = nullptr;
};

/// Writes `path` from a payload that can be produced twice.
TokenFileHeader write_atomically(FileSystem& files, const fs::path& path,
                                 const TokenFileOrigin& origin, std::int64_t token_count,
                                 std::int64_t document_count, bool has_answers,
                                 const std::function<void(Sink&)>& payload) {
  Sink hashing;
  payload(hashing);
  const TokenFileHeader header{.dtype = dtype_for(origin.vocab_size),
                               .vocab_size = origin.vocab_size,
                               .token_count = token_count,
                               .document_count = document_count,
                               .tokenizer_fingerprint = origin.tokenizer_fingerprint,
                               .checksum = hashing.hash(),
                               .has_answers = has_answers};
  RawHeader raw{.magic = kMagic,
                .version = has_answers ? kAnswersVersion : kPlainVersion,
                .token_bytes = static_cast<std::uint32_t>(size_of(header.dtype)),
                .vocab_size = static_cast<std::uint64_t>(header.vocab_size),
                .token_count = static_cast<std::uint64_t>(token_count),
                .document_count = static_cast<std::uint64_t>(document_count),
                .fingerprint = header.tokenizer_fingerprint,
                .checksum = header.checksum,
                .header_checksum = 0};
  raw.header_checksum = hash_of_header(raw);

  const fs::path beside = path.string() + ".tmp";
  auto file = files.create(beside);
  file->append(std::as_bytes(std::span(&raw, 1)));
  Sink writing(*file);
  payload(writing);
  file->sync();
  file->close();
  files.rename(beside, path);
  files.sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
  return header;
}

void append_padding(Sink& sink, std::size_t token_bytes) {
  static constexpr std::array<std::byte, 8> kZeros{};
  sink.append(std::span(kZeros).first(padding_after(token_bytes)));
}

}  // namespace

void write_token_file(FileSystem& files, const fs::path& path, const TokenFileOrigin& origin,
                      std::span<const std::int32_t> tokens,
                      std::span<const std::int64_t> document_starts,
                      const std::vector<bool>& answers) {
  HEDDLE_CHECK(answers.empty() || answers.size() == tokens.size(), "{} answers for {} tokens",
               answers.size(), tokens.size());
  std::vector<std::uint64_t> bits(answers.empty() ? 0 : answer_bytes(answers.size()) / 8);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i]) bits[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  for (const std::int32_t token : tokens) {
    HEDDLE_CHECK(token >= 0 && token < origin.vocab_size, "token {} in a vocabulary of {}", token,
                 origin.vocab_size);
  }
  HEDDLE_CHECK(tokens.empty() == document_starts.empty(), "{} tokens in {} documents",
               tokens.size(), document_starts.size());
  for (std::size_t i = 0; i < document_starts.size(); ++i) {
    const bool ascends =
        i == 0 ? document_starts[i] == 0 : document_starts[i] > document_starts[i - 1];
    HEDDLE_CHECK(ascends && document_starts[i] < static_cast<std::int64_t>(tokens.size()),
                 "document {} begins at {}", i, document_starts[i]);
  }
  std::vector<std::uint16_t> narrow;
  std::span<const std::byte> token_bytes = std::as_bytes(tokens);
  if (dtype_for(origin.vocab_size) == DType::u16) {
    narrow.resize(tokens.size());
    std::transform(tokens.begin(), tokens.end(), narrow.begin(),
                   [](std::int32_t token) { return static_cast<std::uint16_t>(token); });
    token_bytes = std::as_bytes(std::span(narrow));
  }
  write_atomically(files, path, origin, static_cast<std::int64_t>(tokens.size()),
                   static_cast<std::int64_t>(document_starts.size()), !answers.empty(),
                   [&](Sink& sink) {
                     sink.append(token_bytes);
                     append_padding(sink, token_bytes.size());
                     sink.append(std::as_bytes(document_starts));
                     sink.append(std::as_bytes(std::span(bits)));
                   });
}

TokenFileHeader concatenate_token_files(FileSystem& files, const std::vector<TokenFilePart>& parts,
                                        const TokenFileOrigin& origin, const fs::path& path) {
  // Parts are opened again on each pass, so that the number of files held open stays at one.
  std::int64_t token_count = 0, document_count = 0;
  for (const auto& [part, continues] : parts) {
    const TokenFile file = TokenFile::open(part, TokenFile::Check::content);
    HEDDLE_CHECK(!continues || (document_count > 0 && file.document_count() > 0),
                 "{} continues nothing", part.string());
    HEDDLE_CHECK(!file.has_answers() && file.header().vocab_size == origin.vocab_size &&
                     file.header().tokenizer_fingerprint == origin.tokenizer_fingerprint,
                 "{} has another tokenizer than the file it is to be part of", part.string());
    token_count += file.token_count();
    document_count += file.document_count() - (continues ? 1 : 0);
  }
  const auto payload = [&](Sink& sink) {
    for (const TokenFilePart& part : parts) sink.append(TokenFile::open(part.file).token_bytes());
    append_padding(sink,
                   static_cast<std::size_t>(token_count) * size_of(dtype_for(origin.vocab_size)));
    std::int64_t first_token = 0;
    std::vector<std::int64_t> starts;
    for (const auto& [part, continues] : parts) {
      const TokenFile file = TokenFile::open(part);
      starts.resize(static_cast<std::size_t>(file.document_count()));
      for (std::size_t i = 0; i < starts.size(); ++i) {
        starts[i] = first_token + file.document_start(static_cast<std::int64_t>(i));
      }
      sink.append(std::as_bytes(std::span(starts).subspan(continues ? 1 : 0)));
      first_token += file.token_count();
    }
  };
  return write_atomically(files, path, origin, token_count, document_count, false, payload);
}

}  // namespace heddle
