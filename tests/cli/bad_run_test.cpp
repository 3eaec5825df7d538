#include "cli/refusals.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

void expect_train_refused(const TinyRun& run, const std::vector<std::string>& settings, int status,
                          const std::vector<std::string>& mentions) {
  expect_refusal(run.command(settings), status, mentions);
  EXPECT_FALSE(std::filesystem::exists(run.checkpoints()));
}

TEST(BadRunFile, IsRefusedWithPlaceAndKey) {
  const TinyRun run;
  const std::string good = read_text_file(run.path() / "run.toml");
  for (const auto& [text, mentions] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"[model\n", {"run.toml:1:"}},
           {"[model]\nconfig = \n", {"run.toml:2:"}},
           {"[model]\nconfig = \"\xff\"\n", {"run.toml"}},
           {good + "[optim2]\nlr = 1\n", {"run.toml:", "optim2"}},
           {good + "sed = 1\n", {"run.toml:", "sed", "seed"}},
           {good + "threads = 1\n", {"run.toml:", "threads"}},
           {good + "seed = \"one\"\n", {"run.toml:", "seed"}},
           {"", {"model"}}}) {
    run.write("run.toml", text);
    expect_train_refused(run, {}, 2, mentions);
  }
}

TEST(BadSetting, IsRefusedWithTheKeyAndTheNearestOne) {
  const TinyRun run;
  for (const auto& [setting, mentions] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"optim.lrr=1e-3", {"optim.lrr", "did you mean", "optim.lr"}},
           {"nonsense", {"nonsense"}},
           {"optim.lr=-1", {"optim.lr"}},
           {"optim.lr=nan", {"optim.lr"}},
           {"optim.schedule=cosin", {"optim.schedule", "cosine"}},
           {"train.steps=0", {"train.steps"}},
           {"train.steps=99999999999999999999", {"train.steps"}},
           {"train.tokens_per_step=640000000000000",
            {"train.tokens_per_step", "10000000000000 micro-batches", "64000000000"}},
           {"train.tokens_per_step=100", {"train.tokens_per_step", "64", "128"}},
           {"data.seq_len=1000000", {"seq_len"}},
           {"run.dtype=bf16", {"run.dtype"}},
           {"run.device=gpu", {"run.device", "did you mean \"cuda\"?"}},
           {"run.device=cuda:1", {"run.device", "did you mean \"cuda\"?"}},
           {"run.device=cpo", {"run.device", "did you mean \"cpu\"?"}},
           {"parallel.tp=2", {"parallel.dp 1 x tp 2", "--ranks 2"}},
           {"parallel.cp=2", {"parallel.dp 1 x cp 2", "--ranks 2"}},
           {"model.preset=llama-15n", {"llama-15n", "llama-15m"}}}) {
    auto settings = std::vector{setting};
    if (setting.starts_with("model.preset")) settings.push_back("model.config=\"\"");
    expect_train_refused(run, settings, 2, mentions);
  }
  expect_train_refused(run, {"run.device=cuda"}, 3, {"run.device"});
  expect_train_refused(run, {"run.memory_limit=100000"}, 3, {"at its peak", "microbatch"});
  expect_refusal(run.command({"parallel.dp=2"}, {"--ranks", "3"}), 2,
                 {"parallel.dp 2", "3 are started", "--ranks 2"});
  expect_refusal(run.command({}, {"--ranks", "3"}), 2, {"train.tokens_per_step", "parallel.dp 3"});
}

/// A section [parallel] that cannot be, on so many ranks, and what the message must have.
struct BadSharing {
  int ranks;
  std::string parallel;
  std::vector<std::string> mentions;
};

TEST(BadSharedAttention, IsRefusedInWordsOfTheRunFileAllAtOnceWithWhatWouldBeLegal) {
  const TinyRun run;  // 4 query and 2 key heads, micro-batches of 2 x 32 tokens
  const std::string good = read_text_file(run.path() / "run.toml");
  for (const auto& [ranks, parallel, mentions] : std::vector<BadSharing>{
           {2, "cp = 0", {"parallel.cp = 0", "from 1"}},
           {3,
            "cp = 3\ncontext = \"ulysses\"",
            {"parallel.context = \"ulysses\" cannot deal 4 query and 2 key heads out to "
             "parallel.cp "
             "= 3 ranks",
             "use cp = 1, 2 or 4", "context = \"usp\" with context_heads = 1",
             "context = \"ring\""}},
           {4,
            "cp = 4\ncontext = \"usp\"\ncontext_heads = 3",
            {"parallel.context_heads = 3 does not divide parallel.cp = 4", "use 1, 2 or 4"}},
           {8,
            "cp = 8\ncontext = \"usp\"\ncontext_heads = 8",
            {"parallel.context_heads = 8 does not divide", "use 1, 2 or 4"}},
           {4,
            "cp = 4\ncontext_heads = 2",
            {"parallel.context_heads = 2 is for context = \"usp\"", "leave it out"}},
           {4,
            "cp = 4\ncontext = \"lightseq\"\ncontext_order = \"zigzag\"\ncontext_heads = 2",
            {"parallel.context_order = \"zigzag\"", "use context_order = \"contiguous\"",
             "parallel.context_heads = 2 is for context = \"usp\""}},
           {128,
            "cp = 128\ncontext = \"ulysses\"\nzero = 1",
            {"parallel.cp = 128 ranks cannot share micro-batches of 64 tokens", "cp = 64 or less",
             "parallel.context = \"ulysses\" cannot deal", "use cp = 1, 2 or 4"}},
           {4,
            "cp = 2\ntp = 4\npp = 3\ncontext = \"lightseq\"\ncontext_order = \"striped\"\n",
            {"cp 2 x tp 4 x pp 3 makes 24 ranks, but 4 are started; start 24",
             "parallel.pp = 3 is more stages than the model's 2 layers; use at most 2",
             "parallel.context_order = \"striped\""}},
           {8,
            "cp = 2\ntp = 4\ncontext = \"ulysses\"",
            {"parallel.context = \"ulysses\" cannot deal 1 query and 1 key heads",
             "(of each of tp = 4 ranks)", "use cp = 1,"}},
           {3, "cp = 2", {"cp 2 x tp 1 x pp 1 makes 2 ranks, but 3 are started; start 2"}},
           {4,
            "cp = 4\ncontext = \"rings\"\ncontext_order = \"snake\"\ncontext_heads = -1",
            {"parallel.context = \"rings\" is not one of auto, ring, gather, ulysses",
             "did you mean \"ring\"?", "context_order = \"snake\" is not one of auto, contiguous",
             "context_heads = -1 is out of range"}},
           {4,
            "cp = 2\nep = 2\ncontext = \"ring\"\ncontext_heads = 2",
            {"parallel.ep = 2 divides experts, and a llama model has none",
             "parallel.context_heads = 2 is for"}}}) {
    run.write("run.toml", good + "[parallel]\n" + parallel + "\n");
    auto all = mentions;
    all.emplace_back("run.toml:");  // with its place
    expect_refusal(run.command({}, {"--ranks", std::to_string(ranks)}), 2, all);
    expect_refusal(run.command({}, {"--ranks", std::to_string(ranks), "--dry-run"}), 2, all);
    const Outcome outcome = run.train({}, {"--ranks", std::to_string(ranks)});
    for (const char* option : {"context-heads", "--method", "method ", "kv-heads"}) {
      EXPECT_EQ(outcome.err.find(option), std::string::npos) << option << "\n" << outcome.err;
    }
  }
}

TEST(BadData, IsRefusedByName) {
  const TinyRun run;
  const std::string good = read_text_file(run.path() / "data.tokens");
  // Nothing looks wrong before the tokens themselves are read, by the loader's thread.
  const std::string wild = good.substr(0, good.size() - 9000) + std::string(9000, '\xff');
  for (const auto& [name, content] : std::vector<std::pair<std::string, std::string>>{
           {"empty.tokens", ""},
           {"truncated.tokens", good.substr(0, good.size() / 2)},
           {"header-only.tokens", good.substr(0, 20)},
           {"wild.tokens", wild},
           {"noise.tokens", std::string(5000, 'x')}}) {
    run.write(name, content);
    expect_train_refused(run, {"data.train=" + (run.path() / name).string()}, 5, {name});
  }
  expect_train_refused(run, {"data.train=" + (run.path() / "none.tokens").string()}, 5,
                       {"none.tokens"});
  run.write("text.txt", "some text");
  expect_train_refused(run, {"data.train=" + (run.path() / "text.txt").string()}, 2,
                       {"text.txt", "data.tokenizer"});
}

TEST(BadData, ShorterThanAWindowIsRefused) {
  const TinyRun run;
  const std::vector<std::int32_t> tokens(20, 1);
  write_token_file(real_file_system(), run.path() / "short.tokens", {.vocab_size = 61}, tokens,
                   std::vector<std::int64_t>{0});
  expect_train_refused(run, {"data.train=" + (run.path() / "short.tokens").string()}, 5,
                       {"short.tokens", "20", "32"});
}

TEST(BadData, WithIdsBeyondTheModelsVocabularyIsRefused) {
  const TinyRun run;
  expect_train_refused(run, {"model.vocab_size=40"}, 2, {"61", "40", "model.vocab_size"});
}

TEST(BadText, IsRefusedWithFileAndLine) {
  const TestFiles files;
  for (const auto& [name, content, line] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"half.jsonl", "{\"text\": \"a\"}\n{\"text\": \n", ":2"},
           {"array.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n[1]\n", ":3"},
           {"number.jsonl", "{\"text\": 3}\n", ":1"},
           {"other.jsonl", "{\"content\": \"a\"}\n", ":1"},
           {"bytes.jsonl", "{\"text\": \"a\xff\xfe\"}\n", ":1"},
           {"bytes.txt", "good\nbad \xc3\x28\n", ""},
           {"empty.txt", "", ""},
           {"empty.jsonl", "", ""}}) {
    const std::string path = files.write(name, content);
    expect_refusal({"tokenize", path, "--tokenizer", reference_tokenizer(), "--out",
                    files.at("out.tokens"), "--threads", "1"},
                   5, {name + line});
  }
  EXPECT_FALSE(std::filesystem::exists(files.at("out.tokens")));
}

}  // namespace
}  // namespace heddle
