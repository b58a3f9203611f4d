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

// 16 rows of a weight, or of a copy of its last ones.
struct StripRows {
  const std::byte* base;
  size_t stride;

  // The 4 bytes at `at` of every row.
  TANDEM_INLINE __m512i words(size_t at) const {
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_epi32(_mm512_mullo_epi32(row, _mm512_set1_epi32(static_cast<int>(stride))), base + at, 1);
  }
};

// The 4 bytes at `at`, `at` + 4, + 8, + 12 of every row.
struct Words4 { __m512i w[4]; };

// Lane i of the result is 16 bytes of row 4 * i.
TANDEM_INLINE __m512i load_every_fourth(const std::byte* row, size_t stride) {
  const auto piece = [](const std::byte* p) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const __m512i v = _mm512_castsi128_si512(piece(row));
  const __m512i v2 = _mm512_inserti32x4(v, piece(row + 4 * stride), 1);
  const __m512i v3 = _mm512_inserti32x4(v2, piece(row + 8 * stride), 2);
  return _mm512_inserti32x4(v3, piece(row + 12 * stride), 3);
}

TANDEM_INLINE Words4 load_words4(const StripRows& rows, size_t at) {
  const std::byte* p = rows.base + at;
  const __m512i a = load_every_fourth(p, rows.stride), b = load_every_fourth(p + rows.stride, rows.stride);
  p += 2 * rows.stride;
  const __m512i c = load_every_fourth(p, rows.stride), d = load_every_fourth(p + rows.stride, rows.stride);
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

// Words of 16 rows at any even byte offset, put together from transposed pieces of 16 bytes.
template <int n_pieces>
struct Pieces {
  __m512i w[4 * n_pieces];

  // Loads what a unit that ends at byte `end` needs beyond what one that ends at `begin` did.
  template <int begin, int end>
  TANDEM_INLINE void load(const StripRows& rows, size_t at) {
    constexpr int first = (begin + 15) / 16, last = (end + 15) / 16;
    unroll<last - first>([&](auto i) __attribute__((always_inline)) {
      constexpr int piece = first + decltype(i)::value;
      const Words4 four = load_words4(rows, at + 16 * piece);
      unroll<4>([&](auto j) __attribute__((always_inline)) { w[4 * piece + j.value] = four.w[j.value]; });
    });
  }
  template <int offset>
  TANDEM_INLINE __m512i word() const {
    static_assert(offset % 2 == 0);
    if constexpr (offset % 4 == 0) {
      return w[offset / 4];
    } else {
      return _mm512_rol_epi32(_mm512_mask_blend_epi16(0x55555555, w[offset / 4], w[offset / 4 + 1]), 16);
    }
  }
  template <int offset>
  TANDEM_INLINE __m512 half() const {
    if constexpr (offset % 4 == 0) return low_halves(w[offset / 4]);
    return high_halves(w[offset / 4]);
  }
};

template <int offset>
TANDEM_INLINE __m512i level_table(const int8_t (&levels)[16]) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  return _mm512_broadcast_i32x4(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(offset))));
}

// Four bits to bit 4 of four bytes.
TANDEM_INLINE __m512i bits_to_bit4(__m512i bits) {
  const __m512i table = _mm512_setr_epi32(0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010,
                                          0x00101000, 0x00101010, 0x10000000, 0x10000010, 0x10001000, 0x10001010,
                                          0x10100000, 0x10100010, 0x10101000, 0x10101010);
  return _mm512_permutexvar_epi32(bits, table);  // looks at the low four bits only
}

// The simple types: a block of 32 is one or two halves, perhaps a word with the fifth bits (bit j is element j's),
// and nibbles: low ones are elements 0..15, high ones 16..31. Units are unpacked `group` at a time, which is a
// multiple of 16 bytes, or one by one with loads that stay inside the unit.

// `words` gives the word at a constant offset in the unit.
template <class Words>
TANDEM_INLINE void put_nibbles(const Words& words, __m512i* panel) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i q = words(Index<4 * decltype(i)::value>{});
    put(panel, i.value, low_nibbles(q));
    put(panel, 4 + i.value, high_nibbles(q));
  });
}

// Nibbles as indices into 16 levels of a byte each.
template <class Words>
TANDEM_INLINE void put_levels(const Words& words, __m512i levels, __m512i* panel) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i q = words(Index<4 * decltype(i)::value>{});
    put(panel, i.value, _mm512_shuffle_epi8(levels, low_nibbles(q)));
    put(panel, 4 + i.value, _mm512_shuffle_epi8(levels, high_nibbles(q)));
  });
}

template <class Words>
TANDEM_INLINE void put_nibbles_and_bits(const Words& words, __m512i high, __m512i* panel) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    constexpr int g = decltype(i)::value;
    const __m512i q = words(Index<4 * g>{});
    put(panel, g, _mm512_or_si512(low_nibbles(q), bits_to_bit4(_mm512_srli_epi32(high, 4 * g))));
    put(panel, 4 + g, _mm512_or_si512(high_nibbles(q), bits_to_bit4(_mm512_srli_epi32(high, 16 + 4 * g))));
  });
}

template <class Words>
TANDEM_INLINE void put_signed(const Words& words, __m512i* panel) {
  unroll<8>([&](auto i) __attribute__((always_inline)) {
    put(panel, i.value, _mm512_xor_si512(words(Index<4 * decltype(i)::value>{}), bytes(0x80)));
  });
}

// The units of such a type, from what it says of one: Self::put_unit(pieces, Index<offset of the unit>, panel).
template <class Self, int bytes_of_unit>
struct SimpleUnits {
  static constexpr size_t unit_bytes = bytes_of_unit;
  static constexpr int group = 8;
  static_assert(group * bytes_of_unit % 16 == 0);

  // between(i) is called before each unit: the place for prefetches.
  template <class Between>
  TANDEM_INLINE static void unpack_group(const StripRows& rows, size_t at, __m512i* panel, Between&& between) {
    Pieces<group * bytes_of_unit / 16> pieces;
    unroll<group>([&](auto i) __attribute__((always_inline)) {
      constexpr int begin = decltype(i)::value * bytes_of_unit;
      between(i.value);
      pieces.template load<begin, begin + bytes_of_unit>(rows, at);
      Self::put_unit(pieces, Index<begin>{}, panel + i.value * Self::shape.unit_vectors());
    });
  }

  // One unit: its last piece ends with it, so that nothing beyond the weights is read.
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    constexpr int n_pieces = (bytes_of_unit + 15) / 16, slack = n_pieces * 16 - bytes_of_unit;
    // The last piece overlaps the one before, and goes where it belongs in a copy.
    alignas(64) std::byte copy[16 * 16 * n_pieces];
    for (size_t r = 0; r < 16; ++r) {
      for (int i = 0; i < n_pieces; ++i) {
        const int piece = i + 1 < n_pieces ? 16 * i : 16 * i - slack;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(copy + 16 * n_pieces * r + piece),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.base + r * rows.stride + at + piece)));
      }
    }
    const StripRows copied{copy, 16 * n_pieces};
    Pieces<n_pieces> pieces;
    pieces.template load<0, 16 * n_pieces>(copied, 0);
    Self::put_unit(pieces, Index<0>{}, panel);
  }
};

// Words of a unit's part that starts at `part`.
template <int part, class P>
TANDEM_INLINE auto words_from(const P& pieces) {
  return [&pieces](auto offset) __attribute__((always_inline)) { return pieces.template word<part + decltype(offset)::value>(); };
}

// Every struct: the shape of the panel, bytes of a unit in the file, and unpack of the unit at byte `at` of each row.

struct UnpackQ4_0 : SimpleUnits<UnpackQ4_0, sizeof(BlockQ4_0)> {
  static constexpr Shape shape{32, 32, 8, 0, false};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_nibbles(words_from<o + 2>(pieces), panel);
    put(panel, 8, pieces.template half<o>());
  }
};

struct UnpackQ4_1 : SimpleUnits<UnpackQ4_1, sizeof(BlockQ4_1)> {
  static constexpr Shape shape{32, 32, 0, 1, false};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_nibbles(words_from<o + 4>(pieces), panel);
    put(panel, 8, pieces.template half<o>());
    put(panel, 9, pieces.template half<o + 2>());
  }
};

struct UnpackQ5_0 : SimpleUnits<UnpackQ5_0, sizeof(BlockQ5_0)> {
  static constexpr Shape shape{32, 32, 16, 0, false};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_nibbles_and_bits(words_from<o + 6>(pieces), pieces.template word<o + 2>(), panel);
    put(panel, 8, pieces.template half<o>());
  }
};

struct UnpackQ5_1 : SimpleUnits<UnpackQ5_1, sizeof(BlockQ5_1)> {
  static constexpr Shape shape{32, 32, 0, 1, false};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_nibbles_and_bits(words_from<o + 8>(pieces), pieces.template word<o + 4>(), panel);
    put(panel, 8, pieces.template half<o>());
    put(panel, 9, pieces.template half<o + 2>());
  }
};

struct UnpackQ8_0 : SimpleUnits<UnpackQ8_0, sizeof(BlockQ8_0)> {
  static constexpr Shape shape{32, 32, 128, 0, true};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_signed(words_from<o + 2>(pieces), panel);
    put(panel, 8, pieces.template half<o>());
  }
};

struct UnpackIQ4_NL : SimpleUnits<UnpackIQ4_NL, sizeof(BlockIQ4_NL)> {
  static constexpr Shape shape{32, 32, 128, 0, true};
  template <class P, int o>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, __m512i* panel) {
    put_levels(words_from<o + 2>(pieces), level_table<128>(kvalues_iq4nl), panel);
    put(panel, 8, pieces.template half<o>());
  }
};

// Nibbles straight from the rows, where units are no multiple of words.
TANDEM_INLINE auto words_at(const Words4& q) {
  return [&q](auto offset) __attribute__((always_inline)) { return q.w[decltype(offset)::value / 4]; };
}

struct UnpackMXFP4 {
  static constexpr Shape shape{32, 32, 12, 0, false};
  static constexpr size_t unit_bytes = sizeof(BlockMXFP4);
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, __m512i* panel) {
    const Words4 q = load_words4(rows, at + 1);
    put_levels(words_at(q), level_table<12>(kvalues_mxfp4), panel);
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
      const Words4 q = load_words4(rows, at + 8 + 16 * s);
      put_levels(words_at(q), levels, panel + 9 * s);
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
