#include "parallel/exchange/outer_steps.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

const std::string& name_of(const ParamStore::HeldStretch& held) {
  return held.parameter->parts.front().name;
}

/// Of values that sites should have alike, the first site that has others than most do; -1: none.
template <class Value>
int odd_site(const std::vector<Value>& by_site) {
  const auto most = std::ranges::max_element(
      by_site, {}, [&](const Value& value) { return std::ranges::count(by_site, value); });
  const auto odd = std::ranges::find_if(by_site, [&](const Value& v) { return v != *most; });
  return odd == by_site.end() ? -1 : static_cast<int>(odd - by_site.begin());
}

Tensor host_bytes(std::size_t bytes) {
  Memory host;
  return host.alloc({static_cast<std::int64_t>(bytes)}, DType::u8, MemoryTag::communication);
}

}  // namespace

OuterSteps::OuterSteps(ParamStore& store, const RankUnits& units, const OuterPolicy& policy)
    : store_(store), policy_(policy) {
  HEDDLE_CHECK(policy.every > policy.delay && store.grad_dtype() == DType::f32,
               "outer steps every {} steps with a delay of {}", policy.every, policy.delay);
  std::vector<OptimizerState> states = {{.name = kWeights, .is_common = true}};
  first_state_ = store.states().size();
  if (policy.momentum > 0.0) {
    velocity_ = first_state_ + states.size();
    states.push_back({.name = "outer_velocity", .is_common = true});
  }
  if (policy.feedback > 0.0) {
    residual_ = first_state_ + states.size();
    states.push_back({.name = kResidual});
  }
  store.keep(std::move(states));
  fragments_.resize(static_cast<std::size_t>(policy.fragments));
  last_.resize(fragments_.size());
  for (ParamStore::HeldStretch& held : store.held()) {
    const int block = units.units[static_cast<std::size_t>(held.unit)].block;
    fragments_[static_cast<std::size_t>(policy.fragment_of(block))].push_back(std::move(held));
  }
}

void OuterSteps::start(Stream& stream) {
  for (const Stretches& fragment : fragments_) {
    for (const auto& held : fragment) ops::copy(held.value, outer_of(held), stream);
  }
  resume(0, stream);
}

void OuterSteps::resume(std::int64_t step, Stream& stream) {
  step_ = step;
  std::ranges::fill(last_, Last{step, step});
  for (const Stretches& fragment : fragments_) require_equal_tensors(fragment, stream);
}

void OuterSteps::perform(const StepOp& op, Stream& stream) {
  op.kind == StepOp::Kind::outer_begin ? begin(op.what, stream) : end(op.what, stream);
}

// ---- An exchange --------------------------------------------------------------------------------

void OuterSteps::begin(int fragment, Stream& stream) {
  HEDDLE_CHECK(!under_way_.contains(fragment), "fragment {} is under way", fragment);
  Tensor sent = encode(fragment, stream);
  // It is under way before anything travels: others may be gone.
  UnderWay& exchange = under_way_[fragment];
  exchange.sent = std::move(sent);
  last(fragment).begun = step_;
  give(exchange, stretches(fragment), stream);
}

void OuterSteps::give(UnderWay& exchange, const Stretches& stretches, Stream& stream) {
  exchange.received = store_.memory().alloc({sites().size() * exchange.sent.count()},
                                            exchange.sent.dtype(), MemoryTag::communication);
  exchange.work = sites().all_gather(exchange.sent, exchange.received, stream);
  exchange.note_sent = host_bytes(sizeof(SiteNote));
  exchange.notes_received = host_bytes(sizeof(SiteNote) * static_cast<std::size_t>(sites().size()));
  if (!stream.is_dry()) {
    const auto all = hashes(stretches, stream);
    note_.hash = XXH3_64bits(all.data(), all.size() * sizeof(std::uint64_t));
    note_.waited = waited_;
    std::memcpy(exchange.note_sent.bytes(), &note_, sizeof(note_));
  }
  exchange.note_work = sites().all_gather(exchange.note_sent, exchange.notes_received, stream);
}

Tensor OuterSteps::encode(int fragment, Stream& stream) {
  const Stretches& stretches = fragments_[static_cast<std::size_t>(fragment)];
  Memory& memory = store_.memory();
  const codec::Codec* const codec = policy_.codec.get();
  std::int64_t total = 0;
  std::size_t workspace_bytes = 0;
  for (const auto& held : stretches) {
    const std::int64_t values = held.value.count();
    total += codec != nullptr ? policy_.encoded_bytes(values) : values;
    if (codec != nullptr)
      workspace_bytes = std::max(workspace_bytes, codec->workspace_bytes(values));
  }
  const Tensor sent =
      memory.alloc({total}, codec != nullptr ? DType::u8 : DType::f32, MemoryTag::communication);
  Tensor difference, workspace, bad;
  if (codec != nullptr) {
    difference = scratch(stretches);
    workspace =
        memory.alloc({static_cast<std::int64_t>(workspace_bytes)}, DType::u8, MemoryTag::workspace);
    bad = memory.zeros({1}, DType::i64, MemoryTag::workspace);
  }
  std::int64_t at = 0;
  for (const auto& held : stretches) {
    const std::int64_t values = held.value.count();
    const std::int64_t size = codec != nullptr ? policy_.encoded_bytes(values) : values;
    const Tensor to = sent.slice(0, at, at + size);
    const Tensor x = codec != nullptr ? difference.slice(0, 0, values) : to;
    at += size;
    ops::copy(held.value, x, stream);
    ops::scale(x, -1.0, stream);
    ops::accumulate(outer_of(held), x, stream);
    if (!stream.is_dry() && ops::first_non_finite(x, stream) >= 0) {
      throw Error(ErrorCode::data,
                  fmt::format("site {}: weights of {} are not finite, or too far from the outer "
                              "ones, and cannot be sent to other sites",
                              site(), name_of(held)),
                  "lower optim.lr or outer.lr, and go on from the newest checkpoint");
    }
    if (codec == nullptr) continue;
    const Tensor residual = residual_ > 0 ? held.states[residual_] : Tensor();
    if (residual.defined()) ops::scale(residual, policy_.feedback, stream);
    codec->encode({.x = x, .residual = residual, .bytes = to, .bad = bad, .workspace = workspace},
                  stream);
  }
  return sent;
}

void OuterSteps::settle(int fragment, Stream& stream) {
  const auto found = under_way_.find(fragment);
  if (found == under_way_.end()) return;
  wait(found->second, stream);
  const UnderWay exchange = std::move(under_way_.extract(found).mapped());
  ++exchanges_;
  if (!stream.is_dry()) look_at_notes(fragment, exchange.notes_received, stream);
  const Stretches& stretches = fragments_[static_cast<std::size_t>(fragment)];
  const std::int64_t each = exchange.sent.count();
  const Tensor mean = scratch(stretches), more = scratch(stretches);
  std::int64_t at = 0;
  for (const auto& held : stretches) {
    const std::int64_t values = held.value.count();
    const Tensor of_held = mean.slice(0, 0, values);
    add_up(exchange.received, at, each, of_held, stream);
    update(held, of_held, more.slice(0, 0, values), stream);
    at += policy_.codec ? policy_.encoded_bytes(values) : values;
  }
}

/// Where that fails, the exchange stays under way.
void OuterSteps::wait(const UnderWay& exchange, Stream& stream) {
  const bool has_come = exchange.work.done() && exchange.note_work.done();
  if (!has_come && before_waiting_ && !stream.is_dry()) before_waiting_();
  const Stopwatch watch;
  exchange.work.wait(stream);
  exchange.note_work.wait(stream);
  if (before_waiting_ && stream.device().kind != Device::Kind::cpu && !stream.is_dry()) {
    // A kernel of others that was given up ends ours with something else than we wait for. Who
    // comes here over the host had not heard of a loss: what it gave is whole.
    stream.synchronize();
    sites().check();
    sites().barrier();
  }
  waited_ += watch.seconds();
}

/// In the order of sites. `at`: where the stretch lies in what each site sent.
void OuterSteps::add_up(const Tensor& received, std::int64_t at, std::int64_t each,
                        const Tensor& mean, Stream& stream) const {
  const std::int64_t size = policy_.codec ? policy_.encoded_bytes(mean.count()) : mean.count();
  for (int from = 0; from < sites().size(); ++from) {
    const std::int64_t begin = from * each + at;
    const Tensor sent = received.slice(0, begin, begin + size);
    if (policy_.codec) {
      from == 0 ? policy_.codec->decode(sent, mean, stream)
                : policy_.codec->decode_add(sent, mean, stream);
    } else {
      from == 0 ? ops::copy(sent, mean, stream) : ops::accumulate(sent, mean, stream);
    }
  }
  ops::scale(mean, 1.0 / sites().size(), stream);
}

/// Uses `mean` up.
void OuterSteps::update(const ParamStore::HeldStretch& held, const Tensor& mean,
                        const Tensor& scratch, Stream& stream) const {
  if (velocity_ > 0) {
    const Tensor& velocity = held.states[velocity_];
    ops::scale(velocity, policy_.momentum, stream);
    ops::accumulate(mean, velocity, stream);
    ops::copy(velocity, scratch, stream);
    ops::scale(scratch, policy_.momentum, stream);
    ops::accumulate(scratch, mean, stream);
  }
  ops::scale(mean, -policy_.lr, stream);
  ops::accumulate(mean, outer_of(held), stream);
}

void OuterSteps::end(int fragment, Stream& stream) {
  settle(fragment, stream);
  mix(fragment, stream);
  last(fragment).ended = step_;
}

void OuterSteps::mix(int fragment, Stream& stream) {
  if (policy_.mix == 1.0) return;
  const Stretches& stretches = fragments_[static_cast<std::size_t>(fragment)];
  const Tensor share = policy_.mix > 0.0 ? scratch(stretches) : Tensor();
  for (const auto& held : stretches) {
    mix(held, share.defined() ? share.slice(0, 0, held.value.count()) : Tensor(), stream);
  }
}

void OuterSteps::mix(const ParamStore::HeldStretch& held, const Tensor& scratch,
                     Stream& stream) const {
  if (policy_.mix == 0.0) {
    ops::copy(outer_of(held), held.value, stream);
  } else {
    ops::copy(outer_of(held), scratch, stream);
    ops::scale(scratch, 1.0 - policy_.mix, stream);
    ops::scale(held.value, policy_.mix, stream);
    ops::accumulate(scratch, held.value, stream);
  }
  if (held.low.defined()) ops::cast(held.value, held.low, stream);
}

Tensor OuterSteps::scratch(const Stretches& of) const {
  std::int64_t longest = 0;
  for (const auto& held : of) longest = std::max(longest, held.value.count());
  return store_.memory().alloc({longest}, DType::f32, MemoryTag::workspace);
}

// ---- Between steps ------------------------------------------------------------------------------

void OuterSteps::settle(Stream& stream) {
  // In the order of fragments, which is the same on all sites.
  for (int fragment = 0; fragment < policy_.fragments; ++fragment) settle(fragment, stream);
}

void OuterSteps::swap_weights(Stream& stream) {
  swap_held(stream);
  store_.held_changed(stream);
}

void OuterSteps::swap_held(Stream& stream) {
  is_swapped_ = !is_swapped_;
  for (const Stretches& fragment : fragments_) {
    if (fragment.empty()) continue;
    const Tensor room = scratch(fragment);
    for (const auto& held : fragment) {
      const Tensor own = room.slice(0, 0, held.value.count());
      ops::copy(held.value, own, stream);
      ops::copy(outer_of(held), held.value, stream);
      ops::copy(own, outer_of(held), stream);
    }
  }
}

// ---- Whether sites have the same ----------------------------------------------------------------

std::vector<std::uint64_t> OuterSteps::hashes(const Stretches& of, Stream& stream) const {
  std::vector<std::uint64_t> all;
  for (const auto& held : of) {
    const Tensor values = to_host(outer_of(held), stream);
    all.push_back(XXH3_64bits(values.bytes(), values.size_bytes()));
  }
  return all;
}

void OuterSteps::require_equal_tensors(const Stretches& of, Stream& stream) const {
  if (of.empty() || stream.is_dry()) return;
  const auto own = hashes(of, stream);
  const auto count = static_cast<std::int64_t>(own.size());
  Memory host;
  const Tensor sent = host.alloc({count}, DType::i64, MemoryTag::communication);
  const Tensor received = host.alloc({sites().size(), count}, DType::i64, MemoryTag::communication);
  std::memcpy(sent.bytes(), own.data(), sent.size_bytes());
  sites().all_gather(sent, received, stream).wait(stream);
  const auto all = received.host<std::int64_t>();
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<std::int64_t> by_site;
    for (std::size_t at = i; at < all.size(); at += own.size()) by_site.push_back(all[at]);
    if (const int odd = odd_site(by_site); odd >= 0) {
      throw Error(ErrorCode::data,
                  fmt::format("site {} has other outer weights than the others: {} differs",
                              number_of(odd), name_of(of[i])),
                  "sites must start from the same weights: give all of them the same model.path "
                  "or seed, and the same checkpoint");
    }
  }
}

void OuterSteps::look_at_notes(int fragment, const Tensor& received, Stream& stream) {
  notes_.resize(static_cast<std::size_t>(sites().size()));
  std::memcpy(notes_.data(), received.bytes(), received.size_bytes());
  std::vector<std::uint64_t> by_site;
  for (const SiteNote& note : notes_) by_site.push_back(note.hash);
  const int odd = odd_site(by_site);
  if (odd < 0) return;
  require_equal_tensors(fragments_[static_cast<std::size_t>(fragment)], stream);
  throw Error(ErrorCode::data,
              fmt::format("site {} had other outer weights than the others when it sent fragment "
                          "{}, and has not any more",
                          number_of(odd), fragment),
              "its memory or processor may be faulty; go on from the newest checkpoint");
}

}  // namespace heddle
