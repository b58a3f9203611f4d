// Hands out aligned pieces of a scratch buffer in order; with a null base it only measures.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.h"

namespace tandem::cpu {

class ScratchPieces {
 public:
  explicit ScratchPieces(std::byte* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <class T>
  T* take(int64_t n) {
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += align_up(static_cast<size_t>(n) * sizeof(T), 64);
    return piece;
  }
  size_t used() const { return used_; }

 private:
  uintptr_t base_;
  size_t used_ = 0;
};

}  // namespace tandem::cpu
