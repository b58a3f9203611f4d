// Vectors of sixteen floats for the quantizers' inner loops. Each body is compiled for several instruction
// sets, and the one for this processor is chosen at load time. All give the same bits: each lane uses plain
// IEEE operations in source order. Include this header last: it turns fused multiply-adds off for the rest
// of the file. Internal to gguf/.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __clang__
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

// No function multiversioning under sanitizers.
#ifdef TANDEM_LANES_FN  // a test defines its own
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define TANDEM_LANES_FN [[gnu::target_clones("default", "avx2", "avx512f")]]
#else
#define TANDEM_LANES_FN
#endif

namespace tandem::quants {

inline constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using IntLanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));
using ByteLanes = uint8_t __attribute__((vector_size(kLanes)));

[[gnu::always_inline]] inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

[[gnu::always_inline]] inline void store(float* to, const Lanes& lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

[[gnu::always_inline]] inline Lanes splat(float v) {
  return v - Lanes{};
}

[[gnu::always_inline]] inline Lanes magnitude(const Lanes& v) {
  return v < Lanes{} ? -v : v;
}

// nearest_in() for each lane, as floats.
[[gnu::always_inline]] inline Lanes nearest(Lanes v, const Lanes& low, const Lanes& high) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  v = v > low ? v : low;
  v = v < high ? v : high;
  return (v + kRound) - kRound;
}

// inverse() of each lane: 1 / v, or 0 where that is not finite.
[[gnu::always_inline]] inline Lanes inverse_of(const Lanes& v) {
  const Lanes r = 1.0f / v;
  return r - r == Lanes{} ? r : Lanes{};
}

// Sums the first n lanes, in order.
[[gnu::always_inline]] inline float sum_of(const Lanes& v, int n = kLanes) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += v[i];
  return sum;
}

}  // namespace tandem::quants
