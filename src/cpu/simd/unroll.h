// Unrolling by templates.
#pragma once

#include <utility>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
};

template <int... I, class Fn>
TANDEM_INLINE void unroll_each(std::integer_sequence<int, I...>, Fn&& fn) {
  (fn(Index<I>{}), ...);
}
// Calls fn(Index<0>{}), fn(Index<1>{}), ... fn(Index<N - 1>{}), inlined: arrays indexed so live in registers.
template <int N, class Fn>
TANDEM_INLINE void unroll(Fn&& fn) {
  unroll_each(std::make_integer_sequence<int, N>{}, fn);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
