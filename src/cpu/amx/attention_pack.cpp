#include "cpu/amx/attention_pack.h"

#include "cpu/amx/tiles.h"
#include "cpu/avx512/linear_strip.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Stores a vector of pairs from (even, odd) and, in the same place of the other plane, of their rests.
TANDEM_INLINE void store_pairs_of(__m512 even, __m512 odd, const PackCall& call, int64_t at) {
  const __m512i high = pack_pairs(even, odd);
  _mm512_store_si512(call.high + at, high);
  if (call.low == nullptr) return;
  _mm512_store_si512(call.low + at,
                     pack_pairs(_mm512_sub_ps(even, even_of(high)), _mm512_sub_ps(odd, odd_of(high))));
}

}  // namespace

void pack_left(const PackCall& call) {
  // Even and odd columns of a row, so that pairs come out in order.
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int64_t r = 0; r < 16; ++r) {
    const float* row = call.rows + r * call.ld;
    for (int64_t c = 0; c < call.n_columns; c += 32) {
      const __m512 a = _mm512_loadu_ps(row + c), b = _mm512_loadu_ps(row + c + 16);
      store_pairs_of(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b), call,
                     c * 32 + r * 64);
    }
  }
}

void pack_right_transposed(const PackCall& call) {
  const StripRows rows{reinterpret_cast<const std::byte*>(call.rows),
                       static_cast<size_t>(call.ld) * sizeof(float)};
  for (int64_t c = 0; c < call.n_columns; c += 8) {
    const Words8 words = load_words8(rows, static_cast<size_t>(c) * sizeof(float));
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      store_pairs_of(_mm512_castsi512_ps(words.w[2 * i.value]), _mm512_castsi512_ps(words.w[2 * i.value + 1]),
                     call, c * 32 + i.value * 64);
    });
  }
}

void pack_right(const PackCall& call, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r) {
    const float *first = call.rows + 2 * r * call.ld, *second = first + call.ld;
    for (int64_t c = 0; c < call.n_columns; c += 16) {
      _mm512_store_si512(call.high + c / 32 * stride + c % 32 * 64 + r * 64,
                         pack_pairs(_mm512_loadu_ps(first + c), _mm512_loadu_ps(second + c)));
    }
  }
}

void transpose_words(const std::byte* from, std::byte* to) {
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    const Words8 words = load_words8({from, 64}, 32 * half.value);
    unroll<8>([&](auto i) __attribute__((always_inline)) {
      _mm512_store_si512(to + 512 * half.value + 64 * i.value, words.w[i.value]);
    });
  });
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
