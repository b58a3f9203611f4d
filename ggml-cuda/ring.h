// Space in a circular buffer, first in, first out: pieces are released in the order they were taken. Only the
// bookkeeping; the caller owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/checked.h"
#include "base/error.h"

namespace tandem::cuda {

template <class Payload>
class Ring {
 public:
  struct Piece {
    size_t begin = 0, end = 0;
    Payload payload{};
  };

  Ring(size_t n_bytes, size_t alignment) : n_bytes_(n_bytes), alignment_(alignment) {}

  // Takes a piece of n bytes (1 <= n <= the ring's size); null while older pieces occupy the space.
  Piece* take(size_t n) {
    TANDEM_CHECK(n > 0 && n <= n_bytes_);
    const std::optional<size_t> begin = place(n);
    if (!begin) return nullptr;
    pieces_.push_back(Piece{*begin, *begin + n, Payload{}});
    return &pieces_.back();
  }

  bool empty() const { return pieces_.empty(); }
  Piece& oldest() { return pieces_.front(); }
  void release_oldest() { pieces_.pop_front(); }

 private:
  std::optional<size_t> place(size_t n) const {
    if (pieces_.empty()) return 0;
    const size_t head = align_up(pieces_.back().end, alignment_), tail = pieces_.front().begin;
    const bool wrapped = pieces_.back().begin < tail;
    if (head + n <= (wrapped ? tail : n_bytes_)) return head;
    if (!wrapped && n <= tail) return 0;
    return std::nullopt;
  }

  size_t n_bytes_, alignment_;
  std::deque<Piece> pieces_;
};

}  // namespace tandem::cuda
