// Unpacking a strip of 16 weight rows into a panel (linear_layout.h), one struct a dtype.
//
// 16-byte pieces of the 16 rows are loaded four to a vector and transposed as 4-byte words while still packed, so that
// nibbles cost half and single bits an eighth of the shuffles that unpacked bytes would. After that every lane is a
// row, and scales and mins, packed as they may be, unpack for 16 rows at once. Q4_0 takes some 60 vector operations
// for 512 weights (288 bytes).
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// The rows of a strip. Rows past the end of the matrix repeat the last one.
struct StripRows {
  const std::byte* base;
  const std::byte* row[16];
  __m512i offsets;  // of the rows from base, in bytes

  StripRows(const std::byte* first, size_t stride, int64_t n_rows) : base(first) {
    alignas(64) int32_t distance[16];
    for (int64_t i = 0; i < 16; ++i) {
      const size_t r = static_cast<size_t>(i < n_rows ? i : n_rows - 1);
      row[i] = first + r * stride;
      distance[i] = static_cast<int32_t>(r * stride);
    }
    offsets = _mm512_load_si512(distance);
  }

  // The 4 bytes at `at` of every row.
  __m512i words(size_t at) const { return _mm512_i32gather_epi32(offsets, base + at, 1); }
};

// The 4 bytes at `at`, `at` + 4, + 8, + 12 of every row.
struct Words4 { __m512i w[4]; };

TANDEM_INLINE __m512i load_quad(const StripRows& rows, int first, size_t at) {
  const auto piece = [&](int lane) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.row[4 * lane + first] + at));
  };
  __m512i v = _mm512_castsi128_si512(piece(0));
  v = _mm512_inserti32x4(v, piece(1), 1);
  v = _mm512_inserti32x4(v, piece(2), 2);
  return _mm512_inserti32x4(v, piece(3), 3);
}

TANDEM_INLINE Words4 load_words4(const StripRows& rows, size_t at) {
  const __m512i a = load_quad(rows, 0, at), b = load_quad(rows, 1, at);
  const __m512i c = load_quad(rows, 2, at), d = load_quad(rows, 3, at);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  return {{_mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
           _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)}};
}

TANDEM_INLINE __m512i bytes(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
TANDEM_INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, bytes(0x0f)); }
TANDEM_INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
TANDEM_INLINE void put(__m512i* panel, int at, __m512i v) { _mm512_store_si512(panel + at, v); }
TANDEM_INLINE void put(__m512i* panel, int at, __m512 v) { _mm512_store_ps(reinterpret_cast<float*>(panel + at), v); }

// 16 rows x 32 nibbles, low halves of the bytes first, as the simple types order them.
TANDEM_INLINE void put_nibbles(const StripRows& rows, size_t at, __m512i* panel) {
  const Words4 q = load_words4(rows, at);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    put(panel, i.value, low_nibbles(q.w[i.value]));
    put(panel, 4 + i.value, high_nibbles(q.w[i.value]));
  });
}

// The same, as indices into 16 levels of a byte each.
TANDEM_INLINE void put_levels(const StripRows& rows, size_t at, __m512i levels, __m512i* panel) {
  const Words4 q = load_words4(rows, at);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    put(panel, i.value, _mm512_shuffle_epi8(levels, low_nibbles(q.w[i.value])));
    put(panel, 4 + i.value, _mm512_shuffle_epi8(levels, high_nibbles(q.w[i.value])));
  });
}

template <int offset>
TANDEM_INLINE __m512i level_table(const int8_t (&levels)[16]) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  return _mm512_broadcast_i32x4(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(offset))));
}

// The same with a fifth bit each: bit j of the word at high_at belongs to element j.
TANDEM_INLINE void put_nibbles_and_bits(const StripRows& rows, size_t at, size_t high_at, __m512i* panel) {
  // Four bits to bit 4 of four bytes; the permutation looks at the index's low four bits only.
  const __m512i bit4 = _mm512_setr_epi32(0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010,
                                         0x00101000, 0x00101010, 0x10000000, 0x10000010, 0x10001000, 0x10001010,
                                         0x10100000, 0x10100010, 0x10101000, 0x10101010);
  const Words4 q = load_words4(rows, at);
  const __m512i high = rows.words(high_at);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    constexpr int g = decltype(i)::value;
    const __m512i low_bits = _mm512_permutexvar_epi32(_mm512_srli_epi32(high, 4 * g), bit4);
    const __m512i high_bits = _mm512_permutexvar_epi32(_mm512_srli_epi32(high, 16 + 4 * g), bit4);
    put(panel, g, _mm512_or_si512(low_nibbles(q.w[g]), low_bits));
    put(panel, 4 + g, _mm512_or_si512(high_nibbles(q.w[g]), high_bits));
  });
}

// Every struct: the shape of the panel, bytes of a unit in the file, and unpack of the unit at byte `at` of each row.

struct UnpackQ4_0 {
  static constexpr Shape shape{32, 32, 8, 0, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ4_0);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_nibbles(rows, at + 2, panel);
    put(panel, 8, low_halves(rows.words(at)));
  }
};

struct UnpackQ4_1 {
  static constexpr Shape shape{32, 32, 0, 1, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ4_1);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_nibbles(rows, at + 4, panel);
    const __m512i d_m = rows.words(at);
    put(panel, 8, low_halves(d_m));
    put(panel, 9, high_halves(d_m));
  }
};

struct UnpackQ5_0 {
  static constexpr Shape shape{32, 32, 16, 0, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ5_0);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_nibbles_and_bits(rows, at + 6, at + 2, panel);
    put(panel, 8, low_halves(rows.words(at)));
  }
};

struct UnpackQ5_1 {
  static constexpr Shape shape{32, 32, 0, 1, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ5_1);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_nibbles_and_bits(rows, at + 8, at + 4, panel);
    const __m512i d_m = rows.words(at);
    put(panel, 8, low_halves(d_m));
    put(panel, 9, high_halves(d_m));
  }
};

struct UnpackQ8_0 {
  static constexpr Shape shape{32, 32, 128, 0, true};
  static constexpr size_t unit_bytes = sizeof(BlockQ8_0);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    const Words4 low = load_words4(rows, at + 2), high = load_words4(rows, at + 18);
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      put(panel, i.value, _mm512_xor_si512(low.w[i.value], bytes(0x80)));
      put(panel, 4 + i.value, _mm512_xor_si512(high.w[i.value], bytes(0x80)));
    });
    put(panel, 8, low_halves(rows.words(at)));
  }
};

struct UnpackIQ4_NL {
  static constexpr Shape shape{32, 32, 128, 0, true};
  static constexpr size_t unit_bytes = sizeof(BlockIQ4_NL);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_levels(rows, at + 2, level_table<128>(kvalues_iq4nl), panel);
    put(panel, 8, low_halves(rows.words(at)));
  }
};

struct UnpackMXFP4 {
  static constexpr Shape shape{32, 32, 12, 0, false};
  static constexpr size_t unit_bytes = sizeof(BlockMXFP4);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_levels(rows, at + 1, level_table<12>(kvalues_mxfp4), panel);
    // As e8m0_to_fp32_half: subnormal for e < 2.
    const __m512i e = _mm512_and_si512(rows.words(at), _mm512_set1_epi32(0xff));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    put(panel, 8, _mm512_mask_mov_epi32(normal, is_small, small));
  }
};

// Byte b of every lane's word, as a float.
template <int b>
TANDEM_INLINE __m512 unsigned_byte(__m512i words) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 8 * b), _mm512_set1_epi32(0xff)));
}
template <int b>
TANDEM_INLINE __m512 signed_byte(__m512i words) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * b), 24));
}
// Bytes 2 * pair and 2 * pair + 1 of every lane's word, as two 16-bit integers.
template <int pair>
TANDEM_INLINE __m512i byte_pair(__m512i words) {
  return _mm512_shuffle_epi8(words, _mm512_set4_epi32(static_cast<int>(0x800d800c) + 0x00020002 * pair,
                                                      static_cast<int>(0x80098008) + 0x00020002 * pair,
                                                      static_cast<int>(0x80058004) + 0x00020002 * pair,
                                                      static_cast<int>(0x80018000) + 0x00020002 * pair));
}

// Header of Q4_K and Q5_K: d, dmin, eight six-bit scales and mins. scale(s) lands behind the bytes of sub-block s.
TANDEM_INLINE void put_header_k4(const StripRows& rows, size_t at, __m512i* panel) {
  const Words4 h = load_words4(rows, at);
  const __m512 d = low_halves(h.w[0]);
  const __m512i sixes = bytes(0x3f), nibbles = bytes(0x0f), top = bytes(0x30);
  const __m512i scales[2] = {
      _mm512_and_si512(h.w[1], sixes),
      _mm512_or_si512(_mm512_and_si512(h.w[3], nibbles), _mm512_and_si512(_mm512_srli_epi16(h.w[1], 2), top))};
  const __m512i mins[2] = {
      _mm512_and_si512(h.w[2], sixes),
      _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(h.w[3], 4), nibbles),
                      _mm512_and_si512(_mm512_srli_epi16(h.w[2], 2), top))};
  unroll<8>([&](auto s) __attribute__((always_inline)) {
    constexpr int i = decltype(s)::value;
    put(panel, 9 * i + 8, _mm512_mul_ps(unsigned_byte<i % 4>(scales[i / 4]), d));
  });
  unroll<4>([&](auto p) __attribute__((always_inline)) {
    constexpr int i = decltype(p)::value;
    put(panel, 72 + i, byte_pair<i % 2>(mins[i / 2]));
  });
  put(panel, 76, high_halves(h.w[0]));
}

struct UnpackQ4_K {
  static constexpr Shape shape{256, 32, 0, 8, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ4_K);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_header_k4(rows, at, panel);
    for (int c = 0; c < 4; ++c) {
      for (int half = 0; half < 2; ++half) {
        const Words4 q = load_words4(rows, at + 16 + static_cast<size_t>(32 * c + 16 * half));
        __m512i* to = panel + 18 * c + 4 * half;
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          put(to, i.value, low_nibbles(q.w[i.value]));
          put(to, 9 + i.value, high_nibbles(q.w[i.value]));
        });
      }
    }
  }
};

struct UnpackQ5_K {
  static constexpr Shape shape{256, 32, 0, 8, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ5_K);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    put_header_k4(rows, at, panel);
    const __m512i bit4 = bytes(0x10);
    for (int half = 0; half < 2; ++half) {
      const Words4 h = load_words4(rows, at + 16 + static_cast<size_t>(16 * half));
      unroll<4>([&](auto chunk) __attribute__((always_inline)) {
        constexpr int c = decltype(chunk)::value;
        const Words4 q = load_words4(rows, at + 48 + static_cast<size_t>(32 * c + 16 * half));
        __m512i* to = panel + 18 * c + 4 * half;
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          const __m512i bits = h.w[i.value];  // bit 2c for the low nibbles, 2c + 1 for the high ones
          const __m512i low = c < 2 ? _mm512_slli_epi16(bits, c < 2 ? 4 - 2 * c : 0)
                                    : _mm512_srli_epi16(bits, c < 2 ? 0 : 2 * c - 4);
          const __m512i high = c < 2 ? _mm512_slli_epi16(bits, c < 2 ? 3 - 2 * c : 0)
                                     : _mm512_srli_epi16(bits, c < 2 ? 0 : 2 * c - 3);
          put(to, i.value, _mm512_or_si512(low_nibbles(q.w[i.value]), _mm512_and_si512(low, bit4)));
          put(to, 9 + i.value, _mm512_or_si512(high_nibbles(q.w[i.value]), _mm512_and_si512(high, bit4)));
        });
      });
    }
  }
};

struct UnpackQ6_K {
  static constexpr Shape shape{256, 16, 32, 0, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ6_K);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    const Words4 scales = load_words4(rows, at + 192);
    const __m512 d = high_halves(rows.words(at + 206));  // d is the last two bytes: never read past them
    unroll<16>([&](auto s) __attribute__((always_inline)) {
      constexpr int i = decltype(s)::value;
      put(panel, 5 * i + 4, _mm512_mul_ps(signed_byte<i % 4>(scales.w[i / 4]), d));
    });
    const __m512i bits45 = bytes(0x30);
    for (int part = 0; part < 4; ++part) {  // half of 128 columns, and 16 of each 32 in it
      const size_t half = static_cast<size_t>(part / 2), l = static_cast<size_t>(part % 2) * 16;
      const Words4 a = load_words4(rows, at + 64 * half + l), b = load_words4(rows, at + 64 * half + 32 + l);
      const Words4 h = load_words4(rows, at + 128 + 32 * half + l);
      __m512i* to = panel + 40 * half + 5 * (l / 16);
      unroll<4>([&](auto i) __attribute__((always_inline)) {
        const __m512i high = h.w[i.value];
        const __m512i p0 = _mm512_and_si512(_mm512_slli_epi16(high, 4), bits45);
        const __m512i p1 = _mm512_and_si512(_mm512_slli_epi16(high, 2), bits45);
        const __m512i p2 = _mm512_and_si512(high, bits45);
        const __m512i p3 = _mm512_and_si512(_mm512_srli_epi16(high, 2), bits45);
        put(to, i.value, _mm512_or_si512(low_nibbles(a.w[i.value]), p0));
        put(to, 10 + i.value, _mm512_or_si512(low_nibbles(b.w[i.value]), p1));
        put(to, 20 + i.value, _mm512_or_si512(high_nibbles(a.w[i.value]), p2));
        put(to, 30 + i.value, _mm512_or_si512(high_nibbles(b.w[i.value]), p3));
      });
    }
  }
};

// Byte b of every lane's word, in both of its 16-bit halves.
template <int b>
TANDEM_INLINE __m512i twice_byte(__m512i words) {
  constexpr int pattern = static_cast<int>(0x80008000u) | b | b << 16;
  return _mm512_shuffle_epi8(words, _mm512_set4_epi32(pattern + 0x000c000c, pattern + 0x00080008,
                                                      pattern + 0x00040004, pattern));
}

// Scale and quant are so few bits that their product fits a byte: it goes into the panel, and a whole super-block
// needs one float scale.
struct UnpackQ2_K {
  static constexpr Shape shape{256, 256, 0, 16, false};
  static constexpr size_t unit_bytes = sizeof(BlockQ2_K);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    const Words4 header = load_words4(rows, at);
    const __m512i d_dmin = rows.words(at + 80), twos = bytes(3);
    put(panel, 64, low_halves(d_dmin));
    unroll<8>([&](auto p) __attribute__((always_inline)) {
      constexpr int i = decltype(p)::value;
      put(panel, 65 + i, byte_pair<i % 2>(high_nibbles(header.w[i / 2])));
    });
    put(panel, 73, high_halves(d_dmin));
    unroll<4>([&](auto quarter) __attribute__((always_inline)) {
      constexpr int half = decltype(quarter)::value / 2, l = decltype(quarter)::value % 2;
      const Words4 q = load_words4(rows, at + 16 + 32 * half + 16 * l);
      unroll<4>([&](auto plane) __attribute__((always_inline)) {
        constexpr int p = decltype(plane)::value, s = 8 * half + 2 * p + l;
        const __m512i scale = twice_byte<s % 4>(low_nibbles(header.w[s / 4]));
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          // Two bytes in one 16-bit product: no carry, 3 * 15 < 256.
          const __m512i two_bits = _mm512_and_si512(_mm512_srli_epi16(q.w[i.value], 2 * p), twos);
          put(panel, 4 * s + i.value, _mm512_mullo_epi16(two_bits, scale));
        });
      });
    });
  }
};

// (q - 4) * (scale - 32) is -124..128: a byte, with an offset of 124.
struct UnpackQ3_K {
  static constexpr Shape shape{256, 256, 124, 0, true};
  static constexpr size_t unit_bytes = sizeof(BlockQ3_K);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    // Scales are bytes 96..107 and d the last two, 108..109: read 16 bytes that end there.
    const Words4 t = load_words4(rows, at + 94);
    const auto join = [](__m512i a, __m512i b) __attribute__((always_inline)) {
      return _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_slli_epi32(b, 16));
    };
    const __m512i packed[3] = {join(t.w[0], t.w[1]), join(t.w[1], t.w[2]), join(t.w[2], t.w[3])};
    put(panel, 64, high_halves(t.w[3]));
    const __m512i top = bytes(0x30), high = packed[2];
    const __m512i scales[4] = {
        _mm512_or_si512(low_nibbles(packed[0]), _mm512_and_si512(_mm512_slli_epi16(high, 4), top)),
        _mm512_or_si512(low_nibbles(packed[1]), _mm512_and_si512(_mm512_slli_epi16(high, 2), top)),
        _mm512_or_si512(high_nibbles(packed[0]), _mm512_and_si512(high, top)),
        _mm512_or_si512(high_nibbles(packed[1]), _mm512_and_si512(_mm512_srli_epi16(high, 2), top))};
    const __m512i twos = bytes(3), four = bytes(4), even = _mm512_set1_epi16(0xff);
    unroll<4>([&](auto quarter) __attribute__((always_inline)) {
      constexpr int half = decltype(quarter)::value / 2, l = decltype(quarter)::value % 2;
      const Words4 mask = load_words4(rows, at + 16 * l), q = load_words4(rows, at + 32 + 32 * half + 16 * l);
      unroll<4>([&](auto plane) __attribute__((always_inline)) {
        constexpr int p = decltype(plane)::value, s = 8 * half + 2 * p + l, bit = 4 * half + p;
        const __m512i scale = _mm512_sub_epi16(twice_byte<s % 4>(scales[s / 4]), _mm512_set1_epi16(32));
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          const __m512i two_bits = _mm512_and_si512(_mm512_srli_epi16(q.w[i.value], 2 * p), twos);
          const __m512i m = mask.w[i.value];
          const __m512i bit2 = _mm512_and_si512(bit < 2 ? _mm512_slli_epi16(m, bit < 2 ? 2 - bit : 0)
                                                        : _mm512_srli_epi16(m, bit < 2 ? 0 : bit - 2), four);
          const __m512i value = _mm512_or_si512(two_bits, bit2);  // 0..7
          const __m512i low = _mm512_mullo_epi16(_mm512_and_si512(value, even), scale);
          const __m512i up = _mm512_mullo_epi16(_mm512_srli_epi16(value, 8), scale);
          const __m512i product = _mm512_or_si512(_mm512_and_si512(low, even), _mm512_slli_epi16(up, 8));
          // Modulo 256: product - 4 * scale + 124.
          const __m512i shift = _mm512_sub_epi16(_mm512_set1_epi16(124), _mm512_slli_epi16(scale, 2));
          const __m512i shift_bytes = _mm512_or_si512(_mm512_and_si512(shift, even), _mm512_slli_epi16(shift, 8));
          put(panel, 4 * s + i.value, _mm512_add_epi8(product, shift_bytes));
        });
      });
    });
  }
};

struct UnpackIQ4_XS {
  static constexpr Shape shape{256, 32, 128, 0, true};
  static constexpr size_t unit_bytes = sizeof(BlockIQ4_XS);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    const __m512i d_high = rows.words(at), low = rows.words(at + 4);  // d, scales_h; scales_l
    const __m512 d = low_halves(d_high);
    const __m512i levels = level_table<128>(kvalues_iq4nl);
    unroll<8>([&](auto sub) __attribute__((always_inline)) {
      constexpr int s = decltype(sub)::value;
      const __m512i low4 = _mm512_and_si512(_mm512_srli_epi32(low, 4 * s), _mm512_set1_epi32(0x0f));
      const __m512i high2 = _mm512_and_si512(_mm512_srli_epi32(d_high, 16 + 2 * s), _mm512_set1_epi32(3));
      const __m512i six = _mm512_or_si512(low4, _mm512_slli_epi32(high2, 4));
      const __m512 scale = _mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32)));
      put(panel, 9 * s + 8, _mm512_mul_ps(scale, d));
      put_levels(rows, at + 8 + 16 * s, levels, panel + 9 * s);
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
