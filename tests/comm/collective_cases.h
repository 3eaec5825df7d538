#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"

namespace heddle::testing {

/// Cases that every backend must pass, run by every rank of a world at once. Values are small whole
/// numbers, which every dtype sums exactly, unless a case says otherwise.

struct CommCase {
  World& world;
  Memory memory = Memory();
  Stream stream = Stream(1);

  Communicator& all() const { return world.all(); }
  int rank() const { return world.rank(); }
  int size() const { return world.size(); }
};

/// The number that rank `rank` has at `i`.
inline int value_at(int rank, std::int64_t i) {
  return static_cast<int>((i * 7 + rank * 5 + i * rank) % 23) - 9;
}

inline void store(const Tensor& tensor, std::int64_t i, double value) {
  switch (tensor.dtype()) {
    case DType::f32: tensor.data<float>()[i] = static_cast<float>(value); break;
    case DType::f64: tensor.data<double>()[i] = value; break;
    case DType::bf16: tensor.data<BFloat16>()[i] = to_bfloat16(static_cast<float>(value)); break;
    case DType::f16: tensor.data<Float16>()[i] = to_float16(static_cast<float>(value)); break;
    case DType::i32: tensor.data<std::int32_t>()[i] = static_cast<std::int32_t>(value); break;
    case DType::i64: tensor.data<std::int64_t>()[i] = static_cast<std::int64_t>(value); break;
    default: FAIL() << "dtype";
  }
}

inline double load(const Tensor& tensor, std::int64_t i) {
  switch (tensor.dtype()) {
    case DType::f32: return tensor.data<float>()[i];
    case DType::f64: return tensor.data<double>()[i];
    case DType::bf16: return to_float(tensor.data<BFloat16>()[i]);
    case DType::f16: return to_float(tensor.data<Float16>()[i]);
    case DType::i32: return tensor.data<std::int32_t>()[i];
    case DType::i64: return static_cast<double>(tensor.data<std::int64_t>()[i]);
    default: return -1e9;
  }
}

inline Tensor filled(CommCase& c, std::int64_t count, DType dtype, int rank) {
  const Tensor tensor = c.memory.alloc({count}, dtype, MemoryTag::communication);
  for (std::int64_t i = 0; i < count; ++i) store(tensor, i, value_at(rank, i));
  return tensor;
}

inline double combined(ReduceOp op, int ranks, std::int64_t i) {
  double result = value_at(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = value_at(rank, i);
    result = op == ReduceOp::sum ? result + value : std::max(result, value);
  }
  return result;
}

inline void check_all_reduce(CommCase& c, std::int64_t count, DType dtype, ReduceOp op) {
  const Tensor data = filled(c, count, dtype, c.rank());
  c.all().all_reduce(data, op, c.stream).wait(c.stream);
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(load(data, i), combined(op, c.size(), i)) << "element " << i << " of " << count;
  }
}

inline void check_all_gather(CommCase& c, std::int64_t count, DType dtype, bool in_place) {
  const Tensor whole = c.memory.zeros({count * c.size()}, dtype, MemoryTag::communication);
  Tensor shard = filled(c, count, dtype, c.rank());
  if (in_place) {
    const Tensor slice = whole.slice(0, count * c.rank(), count * (c.rank() + 1));
    for (std::int64_t i = 0; i < count; ++i) store(slice, i, load(shard, i));
    shard = slice;
  }
  c.all().all_gather(shard, whole, c.stream).wait(c.stream);
  for (std::int64_t i = 0; i < whole.count(); ++i) {
    ASSERT_EQ(load(whole, i), value_at(static_cast<int>(i / count), i % count)) << "element " << i;
  }
}

inline void check_reduce_scatter(CommCase& c, std::int64_t count, DType dtype, ReduceOp op,
                                 bool in_place) {
  const Tensor whole = filled(c, count * c.size(), dtype, c.rank());
  const std::int64_t begin = count * c.rank();
  const Tensor shard = in_place ? whole.slice(0, begin, begin + count)
                                : c.memory.zeros({count}, dtype, MemoryTag::communication);
  c.all().reduce_scatter(whole, shard, op, c.stream).wait(c.stream);
  for (std::int64_t i = 0; i < whole.count(); ++i) {
    const bool own = i >= begin && i < begin + count;
    if (own) {
      ASSERT_EQ(load(shard, i - begin), combined(op, c.size(), i)) << "element " << i;
    }
    if (!own || !in_place) {
      ASSERT_EQ(load(whole, i), value_at(c.rank(), i)) << "the input changed at " << i;
    }
  }
}

/// Rank a sends rank b (a + 2 b) % 4 rows of three elements.
inline void check_all_to_all(CommCase& c, DType dtype) {
  const auto rows = [](int from, int to) -> std::int64_t { return (from + 2 * to) % 4; };
  std::vector<std::int64_t> send_rows, recv_rows;
  std::int64_t sent = 0, received = 0;
  for (int q = 0; q < c.size(); ++q) {
    sent += send_rows.emplace_back(rows(c.rank(), q));
    received += recv_rows.emplace_back(rows(q, c.rank()));
  }
  const Tensor in = c.memory.alloc({sent, 3}, dtype, MemoryTag::communication);
  const Tensor out = c.memory.zeros({received, 3}, dtype, MemoryTag::communication);
  for (std::int64_t at = 0, q = 0; q < c.size(); ++q) {
    for (std::int64_t i = 0; i < 3 * send_rows[static_cast<std::size_t>(q)]; ++i) {
      store(in, at++, value_at(c.rank(), 100 * q + i));
    }
  }
  c.all().all_to_all(in, out, send_rows, recv_rows, c.stream).wait(c.stream);
  for (std::int64_t at = 0, q = 0; q < c.size(); ++q) {
    for (std::int64_t i = 0; i < 3 * recv_rows[static_cast<std::size_t>(q)]; ++i) {
      ASSERT_EQ(load(out, at++), value_at(static_cast<int>(q), 100 * c.rank() + i));
    }
  }
}

inline void check_broadcast(CommCase& c, std::int64_t count, DType dtype) {
  for (const int root : {0, c.size() - 1}) {
    const Tensor data = filled(c, count, dtype, c.rank());
    c.all().broadcast(data, root, c.stream).wait(c.stream);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(load(data, i), value_at(root, i));
  }
}

/// What is done between two collectives sees the result of the first and feeds the second.
inline void check_work_in_between(CommCase& c) {
  const Tensor data = filled(c, 129, DType::f64, c.rank());
  Work first = c.all().all_reduce(data, ReduceOp::sum, c.stream);
  c.all().then(
      [data](Stream&) {
        for (double& value : data.host<double>()) value += 1.0;
      },
      c.stream);
  c.all().all_reduce(data, ReduceOp::sum, c.stream).wait(c.stream);
  EXPECT_TRUE(first.done());
  for (std::int64_t i = 0; i < data.count(); ++i) {
    ASSERT_EQ(load(data, i), c.size() * (combined(ReduceOp::sum, c.size(), i) + 1.0));
  }
}

inline void check_collectives(World& world, bool background) {
  CommCase c{.world = world};
  world.all().run_in_background(background);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32}) {
    for (const std::int64_t count : {1, 3, 127, 129, 4099}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " x " + std::to_string(count));
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        check_all_reduce(c, count, dtype, op);
        check_reduce_scatter(c, count, dtype, op, false);
        check_reduce_scatter(c, count, dtype, op, true);
      }
      check_all_gather(c, count, dtype, false);
      check_all_gather(c, count, dtype, true);
      check_broadcast(c, count, dtype);
    }
    check_all_to_all(c, dtype);
    world.all().barrier();
  }
  // Large enough to be divided between ranks where that sends less; the parts differ in size.
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    check_all_reduce(c, 70'003, DType::f32, op);
  }
  check_work_in_between(c);
  world.all().run_in_background(false);
}

/// Messages around the ring, two tags, received in another order than sent.
inline void check_messages(World& world) {
  CommCase c{.world = world};
  if (c.size() == 1) return;
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  std::vector<Work> sends;
  for (int i = 0; i < 3; ++i) {
    for (const int tag : {0, 7}) {
      const Tensor data = filled(c, 1000 + i, DType::f32, c.rank() + 10 * i + tag);
      sends.push_back(c.all().send(data, next, c.stream, tag));
    }
  }
  for (const int tag : {7, 0}) {
    for (int i = 0; i < 3; ++i) {
      const Tensor data = c.memory.zeros({1000 + i}, DType::f32, MemoryTag::communication);
      c.all().recv(data, before, c.stream, tag).wait(c.stream);
      for (std::int64_t j = 0; j < data.count(); ++j) {
        ASSERT_EQ(load(data, j), value_at(before + 10 * i + tag, j)) << "message " << i;
      }
    }
  }
  for (const Work& send : sends) send.wait(c.stream);
  for (const Work& send : sends) EXPECT_TRUE(send.done());
}

/// Receives posted before anything is sent, in the order in which they are sent.
inline void check_early_receives(World& world) {
  CommCase c{.world = world};
  if (c.size() == 1) return;
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  std::vector<Tensor> received;
  std::vector<Work> receives, sends;
  for (int i = 0; i < 4; ++i) {
    received.push_back(c.memory.zeros({50}, DType::i32, MemoryTag::communication));
    receives.push_back(c.all().recv(received.back(), before, c.stream));
  }
  c.all().barrier();
  for (int i = 0; i < 4; ++i) {
    sends.push_back(c.all().send(filled(c, 50, DType::i32, c.rank() + i), next, c.stream));
  }
  for (int i = 0; i < 4; ++i) {
    receives[static_cast<std::size_t>(i)].wait(c.stream);
    for (std::int64_t j = 0; j < 50; ++j) {
      ASSERT_EQ(load(received[static_cast<std::size_t>(i)], j), value_at(before + i, j));
    }
  }
  for (const Work& send : sends) send.wait(c.stream);
}

/// Even and odd ranks apart, in reverse order; then a group without the first rank.
inline void check_split(World& world) {
  CommCase c{.world = world};
  const auto half = c.all().split(c.rank() % 2, -c.rank(), "half");
  ASSERT_EQ(half->size(), (c.size() + 1 - c.rank() % 2) / 2);
  EXPECT_EQ(half->rank(), half->size() - 1 - c.rank() / 2);
  EXPECT_EQ(half->name(), "half");
  const Tensor whole = c.memory.zeros({half->size()}, DType::i32, MemoryTag::communication);
  const Tensor own = c.memory.alloc({1}, DType::i32, MemoryTag::communication);
  own.data<std::int32_t>()[0] = c.rank();
  half->all_gather(own, whole, c.stream).wait(c.stream);
  for (int i = 0; i < half->size(); ++i) {
    EXPECT_EQ(whole.data<std::int32_t>()[half->size() - 1 - i], 2 * i + c.rank() % 2);
  }
  const auto rest = c.all().split(c.rank() == 0 ? -1 : 4, 0, "rest");
  ASSERT_EQ(rest == nullptr, c.rank() == 0);
  if (!rest) return;
  EXPECT_EQ(rest->size(), c.size() - 1);
  EXPECT_EQ(rest->rank(), c.rank() - 1);
  rest->all_reduce(own, ReduceOp::sum, c.stream).wait(c.stream);
  EXPECT_EQ(own.data<std::int32_t>()[0], c.size() * (c.size() - 1) / 2);
}

/// Two groups at work at the same time, one in the background.
inline void check_overlap(World& world) {
  CommCase c{.world = world};
  const auto other = c.all().split(0, c.rank(), "other");
  other->run_in_background(true);
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(filled(c, 1000 + i, DType::f32, c.rank()));
    works.push_back(other->all_reduce(tensors.back(), ReduceOp::sum, c.stream));
    check_all_reduce(c, 100, DType::f32, ReduceOp::max);
  }
  for (const Work& work : works) work.wait(c.stream);
  for (const Tensor& tensor : tensors) {
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      ASSERT_EQ(load(tensor, i), combined(ReduceOp::sum, c.size(), i));
    }
  }
}

}  // namespace heddle::testing
