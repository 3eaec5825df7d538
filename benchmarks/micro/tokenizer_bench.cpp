// Encoding a text in documents of 4 KiB with every kind of tokenizer of the tests: bytes per second
// of one core.
//   tokenizer_bench TEXT [TOKENIZER ...] [--benchmark_...]
// Without tokenizers, those of tests/reference/tokenizers.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>

#include "base/file_system.h"
#include "tokenizer/tokenizer.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDocument = 4096;

void encode(benchmark::State& state, const std::string& text, const fs::path& file) {
  const Tokenizer tokenizer = Tokenizer::load(file);
  std::size_t tokens = 0;
  for (auto _ : state) {
    EncodeCache cache;
    std::vector<std::int32_t> ids;
    for (std::size_t at = 0; at < text.size(); at += kDocument) {
      tokenizer.encode(std::string_view(text).substr(at, kDocument), {}, cache, ids);
    }
    tokens = ids.size();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * state.iterations());
  state.counters["tokens"] = static_cast<double>(tokens);
}

std::vector<fs::path> reference_tokenizers() {
  std::vector<fs::path> found;
  const fs::path folder = fs::path(HEDDLE_SOURCE_DIR) / "tests" / "reference" / "tokenizers";
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 2) {
    std::fprintf(stderr, "tokenizer_bench TEXT [TOKENIZER ...]\n");
    return 2;
  }
  const std::string text = heddle::read_text_file(argv[1]);
  std::vector<std::filesystem::path> files(argv + 2, argv + argc);
  if (files.empty()) files = heddle::reference_tokenizers();
  for (const auto& file : files) {
    benchmark::RegisterBenchmark(file.filename().c_str(), [&](benchmark::State& state) {
      heddle::encode(state, text, file);
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
