#pragma once

namespace heddle::ops::cpu {

/// The team of threads of OpenBLAS and oneDNN, which our own loops use too: two pools would fight
/// for the cores. It is GCC's OpenMP library, opened on first use and called by its own interface
/// instead of `#pragma omp`: it reads while it is loaded how long a waiting thread looks before it
/// sleeps, and the program has something to say about that (docs/design/017-waiting-threads.md).
class OpenMp {
 public:
  /// Throws Error(resources) where the library is missing.
  static const OpenMp& instance();

  /// Calls body() on every thread of a team of at most `threads`, the caller among them, and
  /// returns when all have ended. Exceptions must not leave the body.
  template <class Body>
  void run_team(int threads, const Body& body) const {
    const auto call = [](void* data) { (*static_cast<const Body*>(data))(); };
    parallel_(call, const_cast<Body*>(&body), static_cast<unsigned>(threads), 0);
  }

  // omp.h, without its prefix.
  int (*get_thread_num)() = nullptr;
  int (*get_num_threads)() = nullptr;
  int (*get_max_threads)() = nullptr;
  int (*get_thread_limit)() = nullptr;
  int (*get_dynamic)() = nullptr;
  void (*set_num_threads)(int) = nullptr;
  void (*set_dynamic)(int) = nullptr;

 private:
  OpenMp();

  void (*parallel_)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
};

}  // namespace heddle::ops::cpu
