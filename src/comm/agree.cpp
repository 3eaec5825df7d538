#include "comm/agree.h"

#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

/// `text` in a tensor of `size` bytes.
Tensor as_bytes(Memory& memory, const std::string& text, std::int64_t size) {
  const Tensor bytes = memory.zeros({size}, DType::u8, MemoryTag::communication);
  std::memcpy(bytes.host<std::uint8_t>().data(), text.data(), text.size());
  return bytes;
}

std::string as_text(const Tensor& bytes, std::int64_t begin, std::int64_t size) {
  const auto* const data = reinterpret_cast<const char*>(bytes.host<std::uint8_t>().data());
  return {data + begin, static_cast<std::size_t>(size)};
}

std::string to_text(const Error& error) {
  return Json::array({static_cast<int>(error.code()), error.message(), error.hint()}).dump();
}

Error error_from(const std::string& text) {
  const Json error = parse_json(text, "a rank's error");
  return {static_cast<ErrorCode>(error.at(0).get<int>()), error.at(1).get<std::string>(),
          error.at(2).get<std::string>()};
}

}  // namespace

std::string text_of_first(World& world, std::string text) {
  if (world.size() == 1) return text;
  Memory memory;
  Stream host(1);
  const Tensor size = memory.alloc({1}, DType::i64, MemoryTag::communication);
  size.host<std::int64_t>()[0] = static_cast<std::int64_t>(text.size());
  world.all().broadcast(size, 0, host).wait(host);
  const std::int64_t count = size.host<std::int64_t>()[0];
  if (count == 0) return "";
  const Tensor bytes = as_bytes(memory, world.rank() == 0 ? text : "", count);
  world.all().broadcast(bytes, 0, host).wait(host);
  return as_text(bytes, 0, count);
}

std::vector<std::string> texts_of_all(World& world, const std::string& text) {
  if (world.size() == 1) return {text};
  Memory memory;
  Stream host(1);
  const Tensor own = memory.alloc({1}, DType::i64, MemoryTag::communication);
  const Tensor sizes = memory.alloc({world.size()}, DType::i64, MemoryTag::communication);
  own.host<std::int64_t>()[0] = static_cast<std::int64_t>(text.size());
  world.all().all_gather(own, sizes, host).wait(host);
  const auto counts = sizes.host<std::int64_t>();
  std::vector<std::string> texts(counts.size());
  const std::int64_t longest = *std::ranges::max_element(counts);
  if (longest == 0) return texts;
  const Tensor bytes = as_bytes(memory, text, longest);
  const Tensor all = memory.alloc({world.size() * longest}, DType::u8, MemoryTag::communication);
  world.all().all_gather(bytes, all, host).wait(host);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank] = as_text(all, static_cast<std::int64_t>(rank) * longest, counts[rank]);
  }
  return texts;
}

std::vector<double> numbers_of_all(World& world, std::span<const double> own) {
  Memory memory;
  Stream host(1);
  const auto count = static_cast<std::int64_t>(own.size());
  const Tensor sent = memory.alloc({count}, DType::f64, MemoryTag::communication);
  const Tensor all = memory.alloc({world.size(), count}, DType::f64, MemoryTag::communication);
  std::ranges::copy(own, sent.host<double>().begin());
  world.all().all_gather(sent, all, host).wait(host);
  const auto numbers = all.host<double>();
  return {numbers.begin(), numbers.end()};
}

void throw_on_all(World& world, const Error& error) {
  // A rank that ended before another knows the error would look like a failure to it. One that is
  // already told so here knows better.
  try {
    world.all().barrier();
  } catch (const Error&) {
  }
  throw AgreedInWorld(error, world.rank() == 0);
}

void throw_any(World& world, const std::optional<Error>& own) {
  for (const std::string& text : texts_of_all(world, own ? to_text(*own) : "")) {
    if (!text.empty()) throw_on_all(world, error_from(text));
  }
}

void decide_on_first(World& world, const std::function<void()>& decide) {
  std::string verdict;
  if (world.rank() == 0) {
    try {
      decide();
    } catch (const Error& error) {
      verdict = to_text(error);
    }
  }
  verdict = text_of_first(world, std::move(verdict));
  if (!verdict.empty()) throw_on_all(world, error_from(verdict));
}

}  // namespace heddle
