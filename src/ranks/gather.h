// Gathers one record of each rank.
#pragma once

#include <type_traits>
#include <vector>

#include "ranks/ranks.h"

namespace tandem {

// All ranks call it; returns [size], in the order of ranks.
template <class T>
std::vector<T> gather(Ranks& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(ranks.size()));
  const std::vector<size_t> n_bytes(all.size(), sizeof(T));
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), n_bytes, std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace tandem
