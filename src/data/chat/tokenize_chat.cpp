#include "data/chat/tokenize_chat.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "data/chat/answers.h"
#include "data/encode.h"
#include "data/formats/inputs.h"
#include "data/tokenize_parts.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// A change of what is written for the same inputs and options must change this.
constexpr int kChatRecipe = 2;

struct ChatRecord {
  Json object;
  std::string place;
  ChatTokens tokens = {};
  std::exception_ptr failure = {};
};

/// All records so far, as they go to the file.
struct Written {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;
  std::vector<bool> answers;

  void add(const ChatTokens& more) {
    starts.push_back(static_cast<std::int64_t>(tokens.size()));
    tokens.insert(tokens.end(), more.ids.begin(), more.ids.end());
    answers.insert(answers.end(), more.are_answers.begin(), more.are_answers.end());
  }
};

std::string key_of(const std::vector<InputFile>& inputs, const TokenizeChatOptions& options,
                   const ChatTemplate& form, const TokenFileOrigin& origin) {
  const Json json = {
      kChatRecipe,
      call_key(inputs,
               {.inputs = options.inputs, .out = {}, .origin = origin, .kind = options.kind}),
      form.source(),
      options.fields.messages,
      options.fields.prompt,
      options.fields.answer};
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return fmt::format("{:016x}", content_hash(std::as_bytes(std::span(text))));
}

/// Encodes all of them, on so many threads.
void encode(std::vector<ChatRecord>& records, const TokenizeChatOptions& options,
            const ChatTemplate& form, const Tokenizer& tokenizer) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    EncodeCache cache;
    for (std::size_t i = next++; i < records.size(); i = next++) {
      ChatRecord& record = records[i];
      try {
        const Conversation said = conversation_of(record.object, options.fields, record.place);
        record.tokens = chat_tokens(tokenizer, chat_text(form, said, record.place), cache);
      } catch (...) {
        record.failure = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
}

}  // namespace

TokenizeResult tokenize_chat(FileSystem& files, const TokenizeChatOptions& options,
                             const ChatTemplate& form, const Tokenizer& tokenizer,
                             const std::function<void(const TokenizeProgress&)>& progress) {
  const Inputs inputs = find_inputs(options.inputs, options.kind);
  const TokenFileOrigin origin = origin_of(tokenizer);
  const std::string key = key_of(inputs.files, options, form, origin);
  const fs::path record_path = options.out.string() + ".json";
  TokenizeResult result;
  result.left_out = inputs.left_out;
  if (const auto done = find_record(record_path, options.out, key)) {
    result.documents = done->documents;
    result.tokens = done->tokens;
    result.was_up_to_date = true;
    return result;
  }
  Written written;
  constexpr std::size_t kAtATime = 4096;
  std::vector<ChatRecord> records;
  TokenizeProgress now;
  for (const InputFile& file : inputs.files) now.total_bytes += file.size_bytes;
  const auto take_all = [&] {
    encode(records, options, form, tokenizer);
    for (const ChatRecord& record : records) {
      if (record.failure) std::rethrow_exception(record.failure);
      written.add(record.tokens);
    }
    records.clear();
    if (progress) progress(now);
  };
  for_each_object(
      inputs.files,
      [&](const Json& object, const std::string& place) {
        records.push_back({object, place});
        if (records.size() == kAtATime) take_all();
      },
      [&](std::uint64_t bytes) { now.done_bytes = bytes; });
  now.done_bytes = now.total_bytes;
  take_all();
  if (written.starts.empty()) {
    throw Error(ErrorCode::data,
                fmt::format("{} has no conversations", options.inputs.front().string()));
  }
  write_token_file(files, options.out, origin, written.tokens, written.starts, written.answers);
  result.documents = std::ssize(written.starts);
  result.tokens = std::ssize(written.tokens);
  write_record(files, record_path,
               {.key = key,
                .documents = result.documents,
                .tokens = result.tokens,
                .checksum = TokenFile::open(options.out).header().checksum,
                .tokenizer = options.tokenizer.string()});
  return result;
}

}  // namespace heddle
