#include "infer/generate_all.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "comm/gather_rows.h"
#include "infer/prompt.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

/// Sequences on their way: the prompts, what was made of them, and caches.
class ManySequences {
 public:
  ManySequences(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                const GenerateOptions& options, ExpertExchanges exchanges,
                const OnTokenOf& on_token, Stream& stream, Memory& memory)
      : model_(model),
        replicas_(model.mesh().comm(Axis::dp)),
        options_(options),
        stays_(exchanges == ExpertExchanges::one && replicas_.size() > 1),
        on_token_(on_token),
        stream_(stream),
        memory_(memory) {
    for (const auto& prompt : prompts) {
      const auto length = static_cast<std::int64_t>(prompt.size());
      sequences_.push_back(
          {.tokens = prompt,
           .prompt = prompt.size(),
           .wanted = std::min(options.max_tokens, model.spec().longest_sequence() - length)});
      check_angles(length, length + sequences_.back().wanted);
    }
  }

  std::vector<std::vector<std::int32_t>> run() {
    read_prompts();
    for (auto active = unfinished(); !active.empty(); active = unfinished()) go_on(active);
    std::vector<std::vector<std::int32_t>> made;
    for (const Sequence& sequence : sequences_) {
      made.emplace_back(sequence.tokens.begin() + static_cast<std::ptrdiff_t>(sequence.prompt),
                        sequence.tokens.end());
    }
    return made;
  }

 private:
  struct Sequence {
    std::vector<std::int32_t> tokens;
    std::size_t prompt = 0;
    std::int64_t wanted = 0;
    bool is_stopped = false;
    std::unique_ptr<KvCache> cache = nullptr;  ///< where it is decoded

    bool is_done() const {
      return is_stopped || static_cast<std::int64_t>(tokens.size() - prompt) >= wanted;
    }
  };

  /// Keys in a cache keep the angles that they were stored with.
  void check_angles(std::int64_t from, std::int64_t to) const {
    const auto& rope = model_.spec().rope;
    const auto turning = rope ? rope->turning_length() : std::nullopt;
    if (!turning || from > *turning || to <= *turning) return;
    throw Error(ErrorCode::usage,
                fmt::format("a sequence of {} tokens would grow to {}, and behind {} the model's "
                            "rotary embedding (longrope) has other frequencies for all of it",
                            from, to, *turning),
                fmt::format("generate from one prompt at a time, or at most {} tokens of this one",
                            *turning - from));
  }

  int home(std::size_t sequence) const {
    return static_cast<int>(sequence % static_cast<std::size_t>(replicas_.size()));
  }

  /// Those that want more tokens: the same on all ranks.
  std::vector<std::size_t> unfinished() const {
    std::vector<std::size_t> active;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (!sequences_[i].is_done()) active.push_back(i);
    }
    return active;
  }

  /// Replicas take turns; one for which no prompt is left repeats the first, uncounted: all ranks
  /// take part in every round.
  void read_prompts() {
    const auto first = unfinished();
    const auto ranks = static_cast<std::size_t>(replicas_.size());
    std::vector<std::int32_t> made;
    for (std::size_t round = 0; round * ranks < sequences_.size(); ++round) {
      const std::size_t own = round * ranks + static_cast<std::size_t>(replicas_.rank());
      const bool counts = own < sequences_.size();
      Sequence& sequence = sequences_[counts ? own : 0];
      if (counts) sequence.cache = new_cache(sequence);
      const Tensor logits =
          to_host(model_.logits(one_sequence(sequence.tokens, 0, memory_), true,
                                counts ? sequence.cache.get() : nullptr, stream_, memory_),
                  stream_);
      if (counts && !sequence.is_done()) made.push_back(sampled(logits, 0, sequence));
    }
    if (stays_) share_prompts();
    take(first, places_of(first), tokens_of_all(places_of(first), made));
  }

  std::unique_ptr<KvCache> new_cache(const Sequence& sequence) const {
    const auto length = static_cast<std::int64_t>(sequence.prompt);
    return std::make_unique<KvCache>(
        model_.cache_shape(1, length + std::max<std::int64_t>(sequence.wanted, 0)), memory_);
  }

  /// Keys and values of all prompts to everybody.
  void share_prompts() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      if (home(i) != replicas_.rank()) {
        sequence.cache = new_cache(sequence);
        sequence.cache->advance(static_cast<std::int64_t>(sequence.prompt));
      }
      for (int layer = 0; layer < model_.spec().layers; ++layer) {
        for (const Tensor& rows :
             {sequence.cache->keys(layer, 0), sequence.cache->values(layer, 0)}) {
          replicas_.broadcast(rows, home(i), stream_).wait(stream_);
        }
      }
    }
  }

  /// One more token of each.
  void go_on(const std::vector<std::size_t>& active) {
    std::vector<DecodedRows::Sequence> rows_of;
    std::vector<std::size_t> known;  // sequences of which this rank has the cache
    for (const std::size_t i : active) {
      if (!stays_ && home(i) != replicas_.rank()) continue;
      known.push_back(i);
      rows_of.push_back({.cache = sequences_[i].cache.get(),
                         .token = sequences_[i].tokens.back(),
                         .rank = home(i)});
    }
    DecodedRows rows(std::move(rows_of), replicas_.size(), replicas_.rank(), stays_, memory_);
    const Tensor logits = to_host(model_.next_logits(rows, stream_, memory_), stream_);
    std::vector<std::int32_t> made;
    for (std::size_t row = 0; row < rows.here().size(); ++row) {
      const std::size_t i = known[static_cast<std::size_t>(rows.here()[row])];
      made.push_back(sampled(logits, static_cast<std::int64_t>(row), sequences_[i]));
    }
    const DecodedRows::Places places = stays_ ? rows.places() : places_of(active);
    const auto tokens = stays_ ? context_of_all(active, rows, made) : tokens_of_all(places, made);
    for (const std::size_t i : known) sequences_[i].cache->advance(1);
    take(active, places, tokens);
  }

  std::int32_t sampled(const Tensor& logits, std::int64_t row, const Sequence& sequence) const {
    return sample_token(logits.select(0, row).host<float>(), options_.sampling,
                        static_cast<std::uint64_t>(sequence.tokens.size()));
  }

  /// By rank, places in `active` of the sequences that are at home there.
  DecodedRows::Places places_of(const std::vector<std::size_t>& active) const {
    DecodedRows::Places places(static_cast<std::size_t>(replicas_.size()));
    for (std::size_t at = 0; at < active.size(); ++at) {
      places[static_cast<std::size_t>(home(active[at]))].push_back(static_cast<int>(at));
    }
    return places;
  }

  static std::vector<std::int64_t> counts_of(const DecodedRows::Places& places) {
    std::vector<std::int64_t> counts;
    for (const auto& here : places) counts.push_back(std::ssize(here));
    return counts;
  }

  /// New tokens of all ranks, in the order of `places`.
  std::vector<std::int32_t> tokens_of_all(const DecodedRows::Places& places,
                                          const std::vector<std::int32_t>& made) {
    Memory host = memory_.for_host();
    const Tensor own = host.alloc({std::ssize(made)}, DType::i32, MemoryTag::workspace);
    std::ranges::copy(made, own.host<std::int32_t>().begin());
    const Tensor all = gather_rows(own, counts_of(places), replicas_, host, stream_);
    const auto tokens = all.host<std::int32_t>();
    return {tokens.begin(), tokens.end()};
  }

  /// The same, and with it what every rank stored of keys and values: in one call.
  std::vector<std::int32_t> context_of_all(const std::vector<std::size_t>& active,
                                           const DecodedRows& rows,
                                           const std::vector<std::int32_t>& made) {
    const auto own = static_cast<std::size_t>(replicas_.rank());
    const KvCache::Shape shape = model_.cache_shape(1, 1);
    const std::int64_t width = shape.kv_heads * shape.head_dim;
    std::vector<std::int64_t> counts = counts_of(rows.places());
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto stored = counts_of(rows.stored(layer));
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        counts[rank] += 2 * width * stored[rank];
      }
    }
    const Tensor packed = memory_.alloc({counts[own]}, DType::f32, MemoryTag::workspace);
    walk(packed, 0, active, rows, own,
         [&](const Tensor& here, const Tensor& stored) { ops::copy(stored, here, stream_); });
    // Token ids are whole numbers that float32 has.
    std::ranges::transform(made, packed.host<float>().end() - std::ssize(made),
                           [](std::int32_t id) { return static_cast<float>(id); });
    const Tensor all = gather_rows(packed, counts, replicas_, memory_, stream_);
    std::vector<std::int32_t> tokens;
    std::int64_t at = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const std::int64_t end = at + counts[rank];
      if (rank != own) {
        at = walk(all, at, active, rows, rank, [&](const Tensor& here, const Tensor& stored) {
          ops::copy(here, stored, stream_);
        });
      }
      const std::int64_t ids = std::ssize(rows.places()[rank]);
      for (std::int64_t i = end - ids; i < end; ++i) {
        tokens.push_back(static_cast<std::int32_t>(all.host<float>()[static_cast<std::size_t>(i)]));
      }
      at = end;
    }
    return tokens;
  }

  /// Goes through what `rank` stored of the new tokens: its place in `packed`, from `at`, and in
  /// the cache. Returns where it ends.
  template <class Use>
  std::int64_t walk(const Tensor& packed, std::int64_t at, const std::vector<std::size_t>& active,
                    const DecodedRows& rows, std::size_t rank, const Use& use) {
    const KvCache::Shape shape = model_.cache_shape(1, 1);
    const std::int64_t width = shape.kv_heads * shape.head_dim;
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (const int place : rows.stored(layer)[rank]) {
        const KvCache& cache = *sequences_[active[static_cast<std::size_t>(place)]].cache;
        for (const Tensor& all : {cache.keys(layer, 1), cache.values(layer, 1)}) {
          const Tensor newest = all.slice(1, all.size(1) - 1, all.size(1));
          use(packed.slice(0, at, at + width).view(newest.shape()), newest);
          at += width;
        }
      }
    }
    return at;
  }

  void take(const std::vector<std::size_t>& active, const DecodedRows::Places& places,
            const std::vector<std::int32_t>& tokens) {
    std::vector<std::int32_t> by_place(active.size());
    std::size_t at = 0;
    for (const auto& here : places) {
      for (const int place : here) by_place[static_cast<std::size_t>(place)] = tokens[at++];
    }
    for (std::size_t i = 0; i < active.size(); ++i) {
      Sequence& sequence = sequences_[active[i]];
      sequence.tokens.push_back(by_place[i]);
      const bool goes_on = !on_token_ || on_token_(active[i], by_place[i]);
      sequence.is_stopped = !goes_on || std::ranges::count(options_.end_tokens, by_place[i]) > 0;
    }
  }

  const Model& model_;
  Communicator& replicas_;
  const GenerateOptions& options_;
  const bool stays_;
  const OnTokenOf& on_token_;
  Stream& stream_;
  Memory& memory_;
  std::vector<Sequence> sequences_;
};

}  // namespace

std::string refuse_one_exchange(const ModelSpec& spec, const MeshShape& mesh, Device device) {
  if (!spec.experts) return fmt::format("a {} model has no experts", spec.family);
  if (spec.experts->choices() != 1) {
    return fmt::format("a token has {} experts, whose results have to meet",
                       spec.experts->choices());
  }
  for (const BlockSpec& block : spec.blocks) {
    if (block.is_parallel) return "attention and experts take the same input";
  }
  if (mesh.size(Axis::dp) != mesh.ranks() || mesh.size(Axis::ep) != mesh.ranks()) {
    return "all ranks have to divide experts and nothing else (parallel.ep = the number of ranks)";
  }
  if (device.kind != Device::Kind::cpu) return "it works on the CPU only";
  return {};
}

std::vector<std::vector<std::int32_t>> generate_all(
    const Model& model, std::span<const std::vector<std::int32_t>> prompts,
    const GenerateOptions& options, ExpertExchanges exchanges, const OnTokenOf& on_token,
    Stream& stream, Memory& memory) {
  if (prompts.empty()) throw Error(ErrorCode::usage, "there are no prompts", "give one at least");
  for (const auto& prompt : prompts) check_prompt(prompt, model.spec());
  if (model.mesh().size(Axis::cp) > 1) {
    throw Error(ErrorCode::usage, "parallel.cp divides one long sequence, not several prompts",
                "use parallel.dp, tp, pp or ep, or one prompt");
  }
  if (exchanges == ExpertExchanges::one) {
    const std::string why =
        refuse_one_exchange(model.spec(), model.mesh().shape(), memory.device());
    if (!why.empty()) {
      throw Error(ErrorCode::usage, "rows cannot stay with their experts: " + why,
                  "use two exchanges a layer");
    }
  }
  return ManySequences(model, prompts, options, exchanges, on_token, stream, memory).run();
}

}  // namespace heddle
