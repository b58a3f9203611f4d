// A loop whose items are done on all cores, for work that is done once: its threads live as long as the loop.
#pragma once

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace tandem {

// Calls fn(i) once for each i in [0, n), in any order and several at a time. If some throw, all items are done and what the
// first of them threw is thrown.
template <class Fn>
void for_each_at_once(size_t n, const Fn& fn) {
  std::vector<std::exception_ptr> errors(n);
  const auto each = [&](int64_t i) {
    try {
      fn(static_cast<size_t>(i));
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
    }
  };
  std::optional<ThreadPool> pool;
  const size_t n_threads = std::min<size_t>(std::thread::hardware_concurrency(), n);
  try {
    if (n_threads > 1) pool.emplace(static_cast<int>(n_threads));
  } catch (const Error&) {  // without threads it takes longer
  }
  if (pool) {
    pool->run([&](Worker& worker) { worker.for_each(static_cast<int64_t>(n), each); });
  } else {
    for (size_t i = 0; i < n; ++i) each(static_cast<int64_t>(i));
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tandem
