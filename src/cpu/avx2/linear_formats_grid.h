// The IQ2 and IQ3 formats as vectors of signed integers (linear_formats_k.h): magnitudes looked up in the format's grid, eight
// or four at a time, with the signs applied. The scales d * (sc + 1/2) are d / 2 * (2 sc + 1): odd integers. The IQ1 formats' weights
// -1, 0 and 1, moved by an eighth, are -9 to 9 of eighths.
//
// Floors of decode: bytes are half of Q4_K's or fewer, but each 32 columns take eight loads (sixteen for IQ3) with three inserts
// (seven) for the magnitudes and four operations for the signs, besides the five of the product: operations bound them.
#pragma once

#include <array>

#include "cpu/avx2/linear_formats_k.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// The vectors of a grid as bytes: 8 of `Bits` = 2 bits in a word of 64, or 4 of 3 bits in one of 32.
template <class Word, int Bits, size_t N>
constexpr std::array<Word, N> bytes_of_grid(const uint16_t (&grid)[N], int (*level)(uint32_t)) {
  std::array<Word, N> words{};
  for (size_t i = 0; i < N; ++i) {
    for (size_t j = 0; j < sizeof(Word); ++j) {
      const uint32_t code = static_cast<uint32_t>(grid[i]) >> Bits * j & ((1u << Bits) - 1);
      words[i] |= static_cast<Word>(level(code)) << 8 * j;
    }
  }
  return words;
}
constexpr int level_of_iq2(uint32_t code) {
  return iq2_level(code);
}
constexpr int level_of_iq3_xxs(uint32_t code) {
  return iq3_xxs_level(code);
}
constexpr int level_of_iq3_s(uint32_t code) {
  return iq3_s_level(code);
}
constexpr int level_of_iq1(uint32_t code) {  // in eighths, as a byte
  return 8 * (static_cast<int>(code) - 1) & 0xff;
}
constexpr auto kIq2Xxs = bytes_of_grid<uint64_t, 2>(kGrids.iq2_xxs, level_of_iq2);
constexpr auto kIq2Xs = bytes_of_grid<uint64_t, 2>(kGrids.iq2_xs, level_of_iq2);
constexpr auto kIq2S = bytes_of_grid<uint64_t, 2>(kGrids.iq2_s, level_of_iq2);
constexpr auto kIq3Xxs = bytes_of_grid<uint32_t, 3>(kGrids.iq3_xxs, level_of_iq3_xxs);
constexpr auto kIq3S = bytes_of_grid<uint32_t, 3>(kGrids.iq3_s, level_of_iq3_s);
constexpr auto kIq1 = bytes_of_grid<uint64_t, 2>(kGrids.iq1, level_of_iq1);

// Seven sign bits in each byte, with an eighth that makes their number even.
TANDEM_INLINE __m256i with_even_signs(__m256i seven) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i odd = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
  const __m256i eighth =
      _mm256_xor_si256(_mm256_shuffle_epi8(odd, _mm256_and_si256(seven, low)),
                       _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), low)));
  return _mm256_or_si256(seven, eighth);
}

// The signs of 256 weights: four times seven bits in each of 8 words.
TANDEM_INLINE __m256i signs_of_words(__m256i words) {
  const __m256i first = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
  const __m256i second = _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_set1_epi32(0x7f00));
  const __m256i third = _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_set1_epi32(0x7f0000));
  const __m256i fourth = _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_set1_epi32(0x7f000000));
  return with_even_signs(_mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth)));
}

// Sign bits of 32 weights to a vector for sign_epi8.
TANDEM_INLINE __m256i sign_vector(const void* bits) {
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(each_eight_times(bits), bit_of), bit_of);
  return _mm256_or_si256(negative, _mm256_set1_epi8(1));
}

template <class Index, size_t N>
TANDEM_INLINE __m256i look_up_four(const std::array<uint64_t, N>& grid, const Index* index) {
  return _mm256_setr_epi64x(static_cast<long long>(grid[index[0]]), static_cast<long long>(grid[index[1]]),
                            static_cast<long long>(grid[index[2]]), static_cast<long long>(grid[index[3]]));
}
// Gathers are slower than these loads, on AMD's processors and with the microcode against GDS on Intel's.
template <class Index, size_t N>
TANDEM_INLINE __m256i look_up_eight(const std::array<uint32_t, N>& grid, const Index* index) {
  const auto word = [&](int i) __attribute__((always_inline)) {
    return static_cast<int>(grid[index[i]]);
  };
  return _mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
}

// 2 sc + 1
TANDEM_INLINE __m128i odd_scales(__m128i sc) {
  return _mm_or_si128(_mm_add_epi8(sc, sc), _mm_set1_epi8(1));
}
// Nibbles, the low one of a byte first.
TANDEM_INLINE __m128i nibble_scales(__m128i packed) {
  const __m128i low = _mm_set1_epi8(15);
  return odd_scales(
      _mm_unpacklo_epi8(_mm_and_si128(packed, low), _mm_and_si128(_mm_srli_epi16(packed, 4), low)));
}
// The four highest bits of 8 words of 32 bits.
TANDEM_INLINE __m128i top_scales(__m256i words) {
  const __m256i sc = _mm256_srli_epi32(words, 28);
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(sc), _mm256_extracti128_si256(sc, 1));
  return odd_scales(_mm_packus_epi16(halves, halves));
}

// Of the formats with 16 scales in 8 bytes.
TANDEM_INLINE SubScales scales_of_nibbles(const uint8_t* packed, fp16_t d) {
  return {nibble_scales(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed))), _mm_setzero_si128(),
          half_to_float(d) * 0.125f, 0};
}

template <class BlockType, int SubColumns>
struct SignedGrid : Super<BlockType, SubColumns, 128, 0, false> {
  static constexpr bool is_signed = true;
};

struct alignas(32) Signs {
  uint32_t signs[8];  // bit j of word i: column 32 i + j is negative
};
// Indices of the vectors.
template <int N>
struct alignas(32) Indices {
  uint16_t index[N];
};
// Else GCC takes each index or word from a vector, which is two operations, one of them a shuffle, where a load does.
template <class Prepared>
TANDEM_INLINE void keep_in_memory(Prepared& prepared) {
  asm("" : "+m"(prepared));
}

struct IQ2_XXS : SignedGrid<BlockIQ2_XXS, 32> {
  using Prepared = Signs;
  // The second words of every 32 columns.
  TANDEM_INLINE static __m256i words(const Block& b) {
    const __m256i odd_first = _mm256_setr_epi32(1, 3, 5, 7, 0, 2, 4, 6);
    const __m256i low = _mm256_permutevar8x32_epi32(load256(b.qs), odd_first);
    const __m256i high = _mm256_permutevar8x32_epi32(load256(b.qs + 16), odd_first);
    return _mm256_permute2x128_si256(low, high, 0x20);
  }
  TANDEM_INLINE static Signs prepare(const Block& b) {
    Signs prepared;
    store256(prepared.signs, signs_of_words(words(b)));
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block& b, const Signs& prepared) {
    return {look_up_four(kIq2Xxs, reinterpret_cast<const uint8_t*>(b.qs + 4 * I)),
            sign_vector(&prepared.signs[I])};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return {top_scales(words(b)), _mm_setzero_si128(), half_to_float(b.d) * 0.125f, 0};
  }
};

struct IQ2_XS : SignedGrid<BlockIQ2_XS, 16> {
  struct Prepared : Signs, Indices<32> {};
  TANDEM_INLINE static Prepared prepare(const Block& b) {
    const __m256i low = load256(b.qs), high = load256(b.qs + 16);
    const __m256i seven = _mm256_packus_epi16(_mm256_srli_epi16(low, 9), _mm256_srli_epi16(high, 9));
    Prepared prepared;
    store256(prepared.signs, with_even_signs(_mm256_permute4x64_epi64(seven, 0xd8)));
    store256(prepared.index, _mm256_and_si256(low, _mm256_set1_epi16(511)));
    store256(prepared.index + 16, _mm256_and_si256(high, _mm256_set1_epi16(511)));
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block&, const Prepared& prepared) {
    return {look_up_four(kIq2Xs, prepared.index + 4 * I), sign_vector(&prepared.signs[I])};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return scales_of_nibbles(b.scales, b.d);
  }
};

struct IQ2_S : SignedGrid<BlockIQ2_S, 16> {
  using Prepared = Indices<32>;
  TANDEM_INLINE static Prepared prepare(const Block& b) {
    // Two bits of qh for each index, the lowest first, to bits 8 and 9.
    const __m256i to_bit_8 = _mm256_set1_epi64x(0x0004001000400100);
    Prepared prepared;
    for (int h = 0; h < 2; ++h) {
      const __m256i four = broadcast_u32(b.qh + 4 * h);
      const __m256i each = _mm256_shuffle_epi8(
          four, _mm256_setr_epi64x(
                    static_cast<long long>(0x8000800080008000), static_cast<long long>(0x8001800180018001),
                    static_cast<long long>(0x8002800280028002), static_cast<long long>(0x8003800380038003)));
      const __m256i high = _mm256_and_si256(_mm256_mullo_epi16(each, to_bit_8), _mm256_set1_epi16(0x300));
      store256(prepared.index + 16 * h, _mm256_or_si256(_mm256_cvtepu8_epi16(load128(b.qs + 16 * h)), high));
    }
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block& b, const Prepared& prepared) {
    return {look_up_four(kIq2S, prepared.index + 4 * I), sign_vector(b.signs + 4 * I)};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return scales_of_nibbles(b.scales, b.d);
  }
};

struct IQ3_XXS : SignedGrid<BlockIQ3_XXS, 32> {
  using Prepared = Signs;
  TANDEM_INLINE static Signs prepare(const Block& b) {
    Signs prepared;
    store256(prepared.signs, signs_of_words(load256(b.words)));
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block& b, const Signs& prepared) {
    return {look_up_eight(kIq3Xxs, b.qs + 8 * I), sign_vector(&prepared.signs[I])};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return {top_scales(load256(b.words)), _mm_setzero_si128(), half_to_float(b.d) * 0.25f, 0};
  }
};

struct IQ3_S : SignedGrid<BlockIQ3_S, 32> {
  using Prepared = Indices<64>;
  TANDEM_INLINE static Prepared prepare(const Block& b) {
    // A bit of qh for each index, the lowest first, to bit 8.
    const __m256i to_bit_8 = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
    Prepared prepared;
    for (int i = 0; i < 4; ++i) {
      const __m256i each = _mm256_set_m128i(_mm_set1_epi16(b.qh[2 * i + 1]), _mm_set1_epi16(b.qh[2 * i]));
      const __m256i high = _mm256_and_si256(_mm256_mullo_epi16(each, to_bit_8), _mm256_set1_epi16(0x100));
      store256(prepared.index + 16 * i, _mm256_or_si256(_mm256_cvtepu8_epi16(load128(b.qs + 16 * i)), high));
    }
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block& b, const Prepared& prepared) {
    return {look_up_eight(kIq3S, prepared.index + 8 * I), sign_vector(b.signs + 4 * I)};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return {nibble_scales(_mm_cvtsi32_si128(static_cast<int>(load_u32(b.scales)))), _mm_setzero_si128(),
            half_to_float(b.d), 0};
  }
};

// Indices, and bytes of 1 or -1: the eighths that weights are moved by, of 32 columns in IQ1_S (eight bytes, then any), of eight in IQ1_M.
template <int N>
struct MovedIndices : Indices<32> {
  int8_t eighths[N];
};
// Weights in eighths. The sum of a level and an eighth is never 0.
TANDEM_INLINE SignedVector moved(__m256i levels, __m256i eighths) {
  const __m256i s = _mm256_add_epi8(levels, eighths);
  return {_mm256_abs_epi8(s), s};
}
// Bytes of 1, or of -1 where words are negative.
TANDEM_INLINE __m128i eighths_of(__m128i words) {
  return _mm_or_si128(_mm_packs_epi16(_mm_srai_epi16(words, 15), _mm_setzero_si128()), _mm_set1_epi8(1));
}
// The first four words, each four times.
TANDEM_INLINE __m256i each_four_times(__m128i words) {
  return _mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(words),
      _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706));
}

struct IQ1_S : SignedGrid<BlockIQ1_S, 32> {
  using Prepared = MovedIndices<16>;
  TANDEM_INLINE static Prepared prepare(const Block& b) {
    const __m128i words = load128(b.qh);
    Prepared prepared;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(prepared.eighths), eighths_of(words));
    // Three bits of a word for each of four indices, the lowest first, to bits 8 to 10.
    const __m256i to_bit_8 = _mm256_set1_epi64x(0x0000000400200100);
    for (int h = 0; h < 2; ++h) {
      const __m128i four = h == 0 ? words : _mm_srli_si128(words, 8);
      const __m256i each = each_four_times(four);
      const __m256i last = _mm256_blend_epi16(_mm256_mullo_epi16(each, to_bit_8), _mm256_srli_epi16(each, 1), 0x88);
      const __m256i high = _mm256_and_si256(last, _mm256_set1_epi16(0x700));
      store256(prepared.index + 16 * h, _mm256_or_si256(_mm256_cvtepu8_epi16(load128(b.qs + 16 * h)), high));
    }
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block&, const Prepared& prepared) {
    return moved(look_up_four(kIq1, prepared.index + 4 * I), _mm256_set1_epi8(prepared.eighths[I]));
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    const __m128i sc = _mm_and_si128(_mm_srli_epi16(load128(b.qh), 12), _mm_set1_epi16(7));
    return {odd_scales(_mm_packus_epi16(sc, sc)), _mm_setzero_si128(), half_to_float(b.d) * 0.125f, 0};
  }
};

struct IQ1_M : SignedGrid<BlockIQ1_M, 16> {
  using Prepared = MovedIndices<32>;
  TANDEM_INLINE static Prepared prepare(const Block& b) {
    // A nibble of qh for each index, the low one of a byte first: to bits 8 to 10 and, of the sign, to bit 15.
    const __m256i to_bit_8 = _mm256_set1_epi32(0x00100100), to_bit_15 = _mm256_set1_epi32(0x01001000);
    Prepared prepared;
    for (int h = 0; h < 2; ++h) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b.qh + 8 * h));
      const __m256i each = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes));
      const __m256i high = _mm256_and_si256(_mm256_mullo_epi16(each, to_bit_8), _mm256_set1_epi16(0x700));
      store256(prepared.index + 16 * h, _mm256_or_si256(_mm256_cvtepu8_epi16(load128(b.qs + 16 * h)), high));
      const __m256i signs = _mm256_mullo_epi16(each, to_bit_15);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(prepared.eighths + 16 * h),
                       _mm_unpacklo_epi64(eighths_of(_mm256_castsi256_si128(signs)),
                                          eighths_of(_mm256_extracti128_si256(signs, 1))));
    }
    keep_in_memory(prepared);
    return prepared;
  }
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block&, const Prepared& prepared) {
    return moved(look_up_four(kIq1, prepared.index + 4 * I), each_eight_times(prepared.eighths + 4 * I));
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    // Three bits of a word for each of four sub-blocks, the lowest first, to the top.
    const __m256i each = each_four_times(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(b.scales)));
    const __m256i sc = _mm256_srli_epi16(_mm256_mullo_epi16(each, _mm256_set1_epi64x(0x0010008004002000)), 13);
    return {odd_scales(_mm_packus_epi16(_mm256_castsi256_si128(sc), _mm256_extracti128_si256(sc, 1))), _mm_setzero_si128(),
            half_to_float(iq1_m_d(b)) * 0.125f, 0};
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
