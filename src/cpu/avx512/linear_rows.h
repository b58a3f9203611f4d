// Products of a few tokens with block-quantized weights, one row after the other: for decode, where weights come from memory.
//
// Why not in strips (linear_strip.h). Sixteen rows side by side are sixteen streams of two kilobytes each, which the caches'
// own prefetching does not follow; one row after the other is a single stream as long as the matrix. It costs more operations
// a token, because every row's sum is spread over the lanes of a vector, so it pays for few tokens only.
//
// Floors, for Q4_0 and one token: 4 blocks are 72 bytes and 16 vector operations, as written here. A core that starts two of 64
// bytes a cycle takes 8 cycles for that, 31 GB/s at 3.5 GHz: memory is the limit.
// Measured on two cores of a Zen 5, in one run of tests/bench/linear_bench.cpp (2048 x 5632); memory read 52 GB/s. GB/s in
// strips and in rows, and the fraction of the memory's: Q4_0 29, 43, 83%; Q8_0 29, 45, 87%; Q4_K 32, 46, 89%; Q5_K 31, 45, 87%;
// Q6_K 26, 45, 86% (those of Q4_K to Q6_K before their scales were integers). With four tokens: Q4_0 32, 37; Q8_0 25, 42; Q4_K 31,
// 36; Q5_K 27, 37; Q6_K 23, 40 (strips have spread their prefetches since).
// A core of a Zen 4 has four pipes of 32 bytes: products take two of them, shuffles two, of which one is the same, shifts and
// conversions two, and a vector of 64 bytes two cycles of one. So there operations are counted by kind: of 256 columns of Q4_K and a
// token 4 products, 1 for the scales, 1 to add; 3 shuffles and 3 for the scales; 2 shifts, 1 conversion; 4 masks; some smaller ones. That
// is 12 cycles of all pipes, and 15 are taken (18 with 4 shuffles and 4 shifts). From the L2 and from memory, where plain loads read
// 32 GB/s, k 5632, GB/s: Q4_0 27, 26; Q4_K 35, 30; Q5_K 31, 28; Q6_K 34, 29; Q8_0 43, 31. Of Q4_K two tokens 23, 22, four 15, 13. Not
// faster there: the lanes of Q4_0 from masked loads or by permutations of 16 bits; scales that loads repeat for all lanes.
// On Intel four such streams are read at a time (kStreams in fetch.h). Two cores of a Granite Rapids, whose plain loads read 31
// to 33 GB/s in four streams and 28 to 30 in one; k 14336, in one stream and in four: Q4_0 23, 30; Q4_K 24, 33; Q6_K 26, 30; Q8_0 27,
// 33. Four tokens: Q4_K 17, 19; Q6_K 19, 24; Q8_0 20, 27. With the mins of four tokens at once and two operations less a token, Q4_K
// 15.5, 17.5 at a slower time; from the L2 21.6: 47 cycles of a core with encoding and barriers, 33 to 36 of them this loop, where the 60
// operations of its vectors could take 30. Fetching into the L1 as well and two super-blocks of a stream at a time were not faster.
// All these with weights in pages of 4 KiB; in huge ones one token of Q4_K, 5632 x 2048, reads 29 to 31 GB/s and four 20.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "cpu/avx512/linear_store.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// One token's activations.
struct RowToken {
  const int8_t* q;       // [k]
  const float* scale;    // [k / unit]
  const float* base;     // [k / 32] scale * sum; unit 32
  const int16_t* sum16;  // [k / 16]; unit 256
  const int16_t* sum32;  // [k / 32]; unit 256
};

// What the mins of a super-block are multiplied with, of up to four tokens at once.
struct MinFactors {
  alignas(64) int16_t sums[4][8];  // as RowToken::sum32
  float scales[4][4];              // a token's, four times
};
// A call's tokens.
struct RowTokens {
  RowToken each[kMaxRowTokens];
  const MinFactors* mins;  // [k / 256][groups of four tokens], of several tokens; unit 256
};

// Unpacked weights of 128 columns, as a struct of linear_row_formats.h gives them.
struct Codes {
  __m512i first, second;
};

template <class F>
constexpr size_t row_bytes_of(int64_t k) {
  return static_cast<size_t>(k / F::unit) * F::block_bytes;
}

// Formats whose scales within a super-block are integers: products are multiplied with them before they become floats.
template <class F>
constexpr bool integer_scales = requires {
  F::template scale_words<0>(F::header(nullptr));
};

// Sums of one row and one token, spread over lanes: in several chains, because an addition waits for the one before.
template <int chains>
struct RowSums {
  __m512 products[chains];
  __m256 base = _mm256_setzero_ps();  // what offsets and mins add

  TANDEM_INLINE RowSums() {
    for (__m512& sum : products) sum = _mm512_setzero_ps();
  }
  TANDEM_INLINE float total() const {
    const __m512 sum = chains == 1 ? products[0] : _mm512_add_ps(products[0], products[chains - 1]);
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    const __m256 all = _mm256_add_ps(halves, base);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
};
// Formats whose mins are subtracted for all tokens of a super-block at once.
template <class F, int T>
constexpr bool joint_mins = T > 1 && requires { F::kJointMins; };
constexpr int groups_of(int n_tokens) {
  return (n_tokens + 3) / 4;
}

// Three tokens are chains enough, and so is one with integer scales, which adds once a super-block.
template <class F>
constexpr int chains_of(int n_tokens) {
  return n_tokens < 3 && !integer_scales<F> ? 2 : 1;
}

template <class F, int T>
struct RowsSums {
  RowSums<chains_of<F>(T)> of[T];
  __m512 mins[groups_of(T)];  // joint ones, four lanes of each token

  TANDEM_INLINE RowsSums() {
    for (__m512& sum : mins) sum = _mm512_setzero_ps();
  }

  template <int t>
  TANDEM_INLINE float total() {
    if constexpr (joint_mins<F, T>) of[t].base = _mm256_zextps128_ps256(_mm512_extractf32x4_ps(mins[t / 4], t % 4));
    return of[t].total();
  }
};

// Each of the words 4 * four .. 4 * four + 3 of v, four times.
template <int four>
TANDEM_INLINE __m512 four_times(__m512 v) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(4 * four)), v);
}

// Which of four blocks of 32 columns there are.
struct AllBlocks {
  TANDEM_INLINE __m128 words(const float* p) const { return _mm_loadu_ps(p); }
  template <int half>
  TANDEM_INLINE __m512i halves(const int8_t* p) const {
    return _mm512_loadu_si512(p + 64 * half);
  }
};
struct FirstBlocks {
  int n;  // 1 to 3
  TANDEM_INLINE __m128 words(const float* p) const {
    return _mm_maskz_loadu_ps(static_cast<__mmask8>((1 << n) - 1), p);
  }
  template <int half>
  TANDEM_INLINE __m512i halves(const int8_t* p) const {
    return _mm512_maskz_loadu_epi8((uint64_t{1} << (16 * n)) - 1, p + 16 * n * half);
  }
};

// Four blocks of 32 columns, the first of them number `block` of the row; those that are not there count as zero.
template <class F, int T, class Blocks>
TANDEM_INLINE void add_four(const std::byte* w, const RowTokens& x, int64_t block, const Blocks& present,
                            RowsSums<F, T>& sums) {
  const __m128 d = F::scales(w);
  const __m128 offset = F::offsets(w, d);
  const Codes codes = F::codes(w);
  unroll<T>([&](auto t) __attribute__((always_inline)) {
    const RowToken& token = x.each[t.value];
    auto& sum = sums.of[t.value];
    const int8_t* q = token.q + 32 * block;
    const __m512i first =
        dot_u8s8<F::wide>(_mm512_setzero_si512(), codes.first, present.template halves<0>(q));
    const __m512 dot =
        _mm512_cvtepi32_ps(dot_u8s8<F::wide>(first, codes.second, present.template halves<1>(q)));
    const __m128 both = _mm_mul_ps(d, present.words(token.scale + block));
    sum.products[0] = _mm512_fmadd_ps(dot, four_times<0>(_mm512_castps128_ps512(both)), sum.products[0]);
    const __m256 base = _mm256_castps128_ps256(present.words(token.base + block));
    sum.base = _mm256_fmadd_ps(_mm256_zextps128_ps256(offset), base, sum.base);
  });
}

// A super-block, number `block` of the row, of a format with integer scales. A lane's dot product fits 16 bits (of Q6_K 4 * 63 * 128,
// of Q5_K 8 * 31 * 128), so that one multiplication applies the scales of two.
template <class F, int T>
TANDEM_INLINE void add_integers(const std::byte* w, const RowTokens& x, int64_t block, RowsSums<F, T>& sums) {
  const auto header = F::header(w);
  const auto dot = [](__m512i sum, __m512i codes, const int8_t* q) __attribute__((always_inline)) {
    return dot_u8s8<F::wide>(sum, codes, _mm512_loadu_si512(q));
  };
  const __m512i zero = _mm512_setzero_si512();
  const Codes low = F::template codes<0>(w), high = F::template codes<1>(w);  // of 128 columns
  __m512i scales[F::order == Order::evens ? 1 : 2];
  unroll<sizeof scales / sizeof *scales>([&](auto i) __attribute__((always_inline)) {
    scales[i.value] = F::template scale_words<i.value>(header);
  });
  __m512i products[T];
  unroll<T>([&](auto t) __attribute__((always_inline)) {
    products[t.value] = F::offsets(header, x.each[t.value], block);
  });
  if constexpr (F::order == Order::evens) {
    // Step by step for all tokens, as the steps of one wait for each other.
    __m512i even[T], odd[T];  // products of low and of high nibbles
    unroll<T>([&](auto t) __attribute__((always_inline)) { even[t.value] = odd[t.value] = zero; });
    const auto add = [&](__m512i (&to)[T], __m512i codes, int64_t column) __attribute__((always_inline)) {
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        to[t.value] = dot(to[t.value], codes, x.each[t.value].q + 256 * block + column);
      });
    };
    add(even, low.first, 0);
    add(odd, high.first, 128);
    add(even, low.second, 64);
    add(odd, high.second, 192);
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      __m512i& sum = products[t.value];
      sum = dot_i16(sum, _mm512_packs_epi32(even[t.value], odd[t.value]), scales[0]);
    });
  } else {
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      const int8_t* q = x.each[t.value].q + 256 * block;
      __m512i& sum = products[t.value];
      sum = dot_i16(sum, _mm512_packs_epi32(dot(zero, low.first, q), dot(zero, low.second, q + 64)), scales[0]);
      sum = dot_i16(sum, _mm512_packs_epi32(dot(zero, high.first, q + 128), dot(zero, high.second, q + 192)),
                    scales[1]);
    });
  }
  if constexpr (joint_mins<F, T>) {
    const __m512 d = _mm512_broadcastss_ps(header.d);
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      __m512& sum = sums.of[t.value].products[0];
      const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x.each[t.value].scale[block]));
      sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t.value]), scale, sum);
    });
    unroll<groups_of(T)>([&](auto g) __attribute__((always_inline)) {
      F::add_joint_mins(header, x.mins[block * groups_of(T) + g.value], sums.mins[g.value]);
    });
  } else {
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      const RowToken& token = x.each[t.value];
      auto& sum = sums.of[t.value];
      const __m128 d = _mm_mul_ps(header.d, _mm_set1_ps(token.scale[block]));
      sum.products[0] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t.value]), _mm512_broadcastss_ps(d), sum.products[0]);
      F::add_mins(header, token, block, d, sum.base);
    });
  }
}

// Likewise of a format with scales that are floats.
template <class F, int T>
TANDEM_INLINE void add_super_block(const std::byte* w, const RowTokens& x, int64_t block, RowsSums<F, T>& sums) {
  constexpr int chains = chains_of<F>(T);
  const auto header = F::header(w);
  __m512 part[T][chains];
  // The n-th dot product of token t, of columns that have a scale for every four lanes.
  const auto add = [&](auto n, auto t, __m512i dot, __m512 scale) __attribute__((always_inline)) {
    __m512& to = part[t.value][n.value % chains];
    const __m512 product = _mm512_cvtepi32_ps(dot);
    to = n.value < chains ? _mm512_mul_ps(product, scale) : _mm512_fmadd_ps(product, scale, to);
  };
  unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
    constexpr int h = decltype(half)::value;
    const Codes codes = F::template codes<h>(w);
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      const int8_t* q = x.each[t.value].q + 256 * block + 128 * h;
      const __m512i zero = _mm512_setzero_si512();
      const __m512i first = dot_u8s8<F::wide>(zero, codes.first, _mm512_loadu_si512(q));
      if constexpr (F::order == Order::halves) {
        const __m512i dot = dot_u8s8<F::wide>(first, codes.second, _mm512_loadu_si512(q + 64));
        add(Index<h>{}, t, dot, four_times<h>(header.scales));
      } else {
        const __m512i second = dot_u8s8<F::wide>(zero, codes.second, _mm512_loadu_si512(q + 64));
        add(Index<2 * h>{}, t, first, four_times<2 * h>(header.scales));
        add(Index<2 * h + 1>{}, t, second, four_times<2 * h + 1>(header.scales));
      }
    });
  });
  unroll<T>([&](auto t) __attribute__((always_inline)) {
    const RowToken& token = x.each[t.value];
    const __m512 scale = _mm512_set1_ps(token.scale[block]);
    auto& sum = sums.of[t.value];
    unroll<chains>([&](auto c) __attribute__((always_inline)) {
      sum.products[c.value] = _mm512_fmadd_ps(part[t.value][c.value], scale, sum.products[c.value]);
    });
    sum.base = _mm256_fmadd_ps(F::base(header, token, block), _mm512_castps512_ps256(scale), sum.base);
  });
}

// R streams of weights at a time, each of some rows one after the other: the first R-th of the call's rows, the second, and so on.
template <class F, int T, int R>
TANDEM_INLINE void dot_streams(const LinearCall& call, int64_t row0, int64_t rows_of_stream, AheadOfStreams ahead,
                               const RowTokens& x) {
  const size_t stride = row_bytes_of<F>(call.k);
  constexpr int64_t step_blocks = F::unit == 32 ? 4 : 1;
  constexpr size_t step_bytes = F::block_bytes * step_blocks;
  const int64_t n_blocks = call.k / F::unit, n_steps = n_blocks / step_blocks;
  const std::byte* w[R];
  unroll<R>([&](auto s) __attribute__((always_inline)) {
    w[s.value] = call.w + static_cast<size_t>(row0 + s.value * rows_of_stream) * stride;
  });
  for (int64_t r = row0; r < row0 + rows_of_stream; ++r) {
    RowsSums<F, T> sums[R];
    // add(weights, sums) for the next weights of each stream.
    const auto step = [&](size_t distance, const auto& add) __attribute__((always_inline)) {
      unroll<R>([&](auto s) __attribute__((always_inline)) {
        const std::byte*& from = w[s.value];
        unroll<(step_bytes + 63) / 64>([&](auto i) __attribute__((always_inline)) {
          _mm_prefetch(reinterpret_cast<const char*>(from + distance + 64 * i.value), _MM_HINT_T1);
        });
        add(from, sums[s.value]);
        from += step_bytes;
      });
    };
    int64_t block = 0;
    for (const auto& part : ahead.next_row(stride, n_steps, step_bytes)) {
      for (; block < part.end * step_blocks; block += step_blocks) {
        step(part.distance, [&](const std::byte* from, auto& to) __attribute__((always_inline)) {
          if constexpr (F::unit == 32) {
            add_four<F, T>(from, x, block, AllBlocks{}, to);
          } else if constexpr (integer_scales<F>) {
            add_integers<F, T>(from, x, block, to);
          } else {
            add_super_block<F, T>(from, x, block, to);
          }
        });
      }
    }
    if constexpr (F::unit == 32) {
      if (const int64_t rest = n_blocks - block; rest > 0) {
        const size_t n_bytes = static_cast<size_t>(rest) * F::block_bytes;
        unroll<R>([&](auto s) __attribute__((always_inline)) {
          alignas(64) std::byte copy[step_bytes] = {};
          std::memcpy(copy, w[s.value], n_bytes);
          add_four<F, T>(copy, x, block, FirstBlocks{static_cast<int>(rest)}, sums[s.value]);
          w[s.value] += n_bytes;
        });
      }
    }
    unroll<R>([&](auto s) __attribute__((always_inline)) {
      const int64_t row = r + s.value * rows_of_stream;
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        float y = sums[s.value].template total<t.value>();
        if (call.bias) y += call.bias[row];
        if (call.residual) y += call.residual[t.value * call.ld_residual + row];
        call.y[t.value * call.ldy + row] = y;
      });
    });
  }
}

template <class F, int T>
void dot_rows(const LinearCall& call, int64_t row0, int64_t row1, const RowTokens& x) {
  const size_t stride = row_bytes_of<F>(call.k);
  const auto bytes = [&](int64_t n_rows) { return static_cast<size_t>(n_rows) * stride; };
  const int64_t rows_of_stream = reads_in_streams() ? rows_of_streams(row1 - row0, stride) : 0;
  dot_streams<F, T, kStreams>(call, row0, rows_of_stream,
                              {bytes(rows_of_stream), bytes(row1 - row0), kAheadOfStream}, x);
  const int64_t rest = row0 + kStreams * rows_of_stream;
  dot_streams<F, T, 1>(call, rest, row1 - rest, {bytes(row1 - rest), bytes(row1 - rest), ahead_into_l2()}, x);
}

using RowKernel = void (*)(const LinearCall&, int64_t row0, int64_t row1, const RowTokens& tokens);

// By the number of tokens; null beyond F::max_tokens.
template <class F>
struct RowKernels {
  template <int T>
  static constexpr RowKernel kernel() {
    if constexpr (T >= 1 && T <= F::max_tokens) return dot_rows<F, T>;
    return nullptr;
  }
  template <int... T>
  static constexpr std::array<RowKernel, kMaxRowTokens + 1> all(std::integer_sequence<int, T...>) {
    return {kernel<T>()...};
  }
  static constexpr std::array<RowKernel, kMaxRowTokens + 1> by_tokens =
      all(std::make_integer_sequence<int, kMaxRowTokens + 1>{});
};

// The call's tokens, each encoded as a tile of its own; derived: [n][k / 32] floats, or [k / 256][2] MinFactors if has_mins.
TANDEM_INLINE void row_tokens(const LinearCall& call, int unit, bool has_mins, float* derived, RowTokens& tokens) {
  const TileLayout layout{unit, call.k};
  const int64_t n_blocks = call.k / 32;
  for (int64_t t = 0; t < call.n; ++t) {
    const std::byte* tile = call.x + 4 * t * layout.token_words();
    const std::byte* scale = tile + 4 * layout.q_words();
    const std::byte* sum = scale + 4 * layout.scale_words();
    RowToken& token = tokens.each[t];
    token.q = reinterpret_cast<const int8_t*>(tile);
    token.scale = reinterpret_cast<const float*>(scale);
    token.sum16 = reinterpret_cast<const int16_t*>(sum);
    token.sum32 = reinterpret_cast<const int16_t*>(sum + 4 * layout.sum_words());
    token.base = derived + t * n_blocks;
    if (unit != 32) continue;
    const int32_t* sums = reinterpret_cast<const int32_t*>(sum);
    for (int64_t i = 0; i < n_blocks; ++i)
      derived[t * n_blocks + i] = token.scale[i] * static_cast<float>(sums[i]);
  }
  if (!has_mins || call.n < 2) return;
  auto* mins = reinterpret_cast<MinFactors*>(derived);
  tokens.mins = mins;
  for (int64_t b = 0; b < call.k / 256; ++b) {
    for (int64_t first = 0; first < call.n; first += 4, ++mins) {
      *mins = {};
      for (int64_t t = 0; t < 4 && first + t < call.n; ++t) {
        const RowToken& token = tokens.each[first + t];
        std::memcpy(mins->sums[t], token.sum32 + 8 * b, sizeof mins->sums[t]);
        for (float& scale : mins->scales[t]) scale = token.scale[b];
      }
    }
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
