// Unpacks a strip of 16 weight rows, one struct per dtype. Unpacked vectors go to a sink under their number
// in a panel (linear_layout.h): into memory, or directly into products (linear_sink.h). A scale comes before
// the bytes it belongs to, and bytes come in ascending order.
//
// Rows are transposed (linear_strip.h) while still packed, so that nibbles cost half and single bits an
// eighth of the shuffles that unpacked bytes would. After that every lane is a row, and scales and mins,
// packed as they may be, unpack for 16 rows at once. Q4_0 takes some 60 vector operations for 512 weights
// (288 bytes).
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_strip.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

TANDEM_INLINE __m512i bytes(int value) {
  return _mm512_set1_epi8(static_cast<char>(value));
}
TANDEM_INLINE __m512i low_nibbles(__m512i v) {
  return _mm512_and_si512(v, bytes(0x0f));
}
TANDEM_INLINE __m512i high_nibbles(__m512i v) {
  return low_nibbles(_mm512_srli_epi16(v, 4));
}

template <int at, class Sink>
TANDEM_INLINE void put(Sink& sink, __m512i v) {
  sink.template put<at>(v);
}
template <int at, class Sink>
TANDEM_INLINE void put(Sink& sink, __m512 v) {
  sink.template put<at>(_mm512_castps_si512(v));
}

template <int offset>
TANDEM_INLINE __m512i level_table(const int8_t (&levels)[16]) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  return _mm512_broadcast_i32x4(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(offset))));
}

// Four bits to bit 4 of four bytes.
TANDEM_INLINE __m512i bits_to_bit4(__m512i bits) {
  const __m512i table = _mm512_setr_epi32(
      0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010, 0x00101000, 0x00101010,
      0x10000000, 0x10000010, 0x10001000, 0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
  return _mm512_permutexvar_epi32(bits, table);  // looks at the low four bits only
}

// The simple types: a block of 32 is one or two halves, perhaps a word with the fifth bits (bit j is element
// j's), and nibbles: low ones are elements 0..15, high ones 16..31. Units are unpacked `group` at a time,
// which is a multiple of 16 bytes, or one by one with loads that stay inside the unit.

// 16 words of nibbles become vectors first .. first + 3 and first + 4 .. first + 7. `words` gives the word at
// a constant offset in bytes.
template <int first, class Words, class Sink>
TANDEM_INLINE void put_nibbles(const Words& words, Sink& sink) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i q = words(Index<4 * i.value>{});
    put<first + i.value>(sink, low_nibbles(q));
    put<first + 4 + i.value>(sink, high_nibbles(q));
  });
}

// Nibbles as indices into 16 levels of a byte each.
template <int first, class Words, class Sink>
TANDEM_INLINE void put_levels(const Words& words, __m512i levels, Sink& sink) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i q = words(Index<4 * i.value>{});
    put<first + i.value>(sink, _mm512_shuffle_epi8(levels, low_nibbles(q)));
    put<first + 4 + i.value>(sink, _mm512_shuffle_epi8(levels, high_nibbles(q)));
  });
}

template <class Words, class Sink>
TANDEM_INLINE void put_nibbles_and_bits(const Words& words, __m512i high, Sink& sink) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i q = words(Index<4 * i.value>{});
    put<i.value>(sink, _mm512_or_si512(low_nibbles(q), bits_to_bit4(_mm512_srli_epi32(high, 4 * i.value))));
    put<4 + i.value>(
        sink, _mm512_or_si512(high_nibbles(q), bits_to_bit4(_mm512_srli_epi32(high, 16 + 4 * i.value))));
  });
}

// The units of such a type, from what it says of one: Self::put_unit(pieces, Index<offset of the unit>,
// sink).
template <class Self, int bytes_of_unit>
struct SimpleUnits {
  static constexpr size_t block_bytes = bytes_of_unit;
  static constexpr int group = 8, pauses = 1;

  template <class Sink>
  TANDEM_INLINE static void unpack_group(const StripRows& rows, size_t at, Sink& sink) {
    Pieces<group * bytes_of_unit> pieces;
    unroll<group>([&](auto i) __attribute__((always_inline)) {
      constexpr int begin = decltype(i)::value * bytes_of_unit;
      pieces.template load<begin, begin + bytes_of_unit>(rows, at);
      auto unit = sink.template unit<decltype(i)::value>();
      unit.pause();
      Self::put_unit(pieces, Index<begin>{}, unit);
      unit.finish();
    });
  }

  // One unit: its last piece ends with it, so that nothing beyond the weights is read.
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    constexpr int width = (bytes_of_unit + 15) / 16 * 16;
    alignas(64) std::byte copy[16 * width];
    for (size_t r = 0; r < 16; ++r) {
      unroll<width / 16>([&](auto i) __attribute__((always_inline)) {
        constexpr int piece =
            decltype(i)::value * 16 + 16 <= bytes_of_unit ? decltype(i)::value * 16 : bytes_of_unit - 16;
        const __m128i* from = reinterpret_cast<const __m128i*>(rows.base + r * rows.stride + at + piece);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(copy + width * r + piece), _mm_loadu_si128(from));
      });
    }
    sink.pause();
    Pieces<width> pieces;
    pieces.template load<0, width>({copy, width}, 0);
    Self::put_unit(pieces, Index<0>{}, sink);
  }
};

// Words of a unit's part that starts at `part`.
template <int part, class P>
TANDEM_INLINE auto words_from(const P& pieces) {
  return [&pieces](auto offset) __attribute__((always_inline)) {
    return pieces.template word<part + decltype(offset)::value>();
  };
}

// Every struct: the shape of the panel, bytes of a block in the file, which is a unit unless block_units says more, and unpack of the
// block at byte `at` of each row, which pauses so many times to let the sink look ahead.

struct UnpackQ4_0 : SimpleUnits<UnpackQ4_0, sizeof(BlockQ4_0)> {
  static constexpr Shape shape{32, 32, 8, 0, false};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    put_nibbles<0>(words_from<o + 2>(pieces), sink);
  }
};

struct UnpackQ4_1 : SimpleUnits<UnpackQ4_1, sizeof(BlockQ4_1)> {
  static constexpr Shape shape{32, 32, 0, 1, false};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    put<9>(sink, pieces.template half<o + 2>());
    put_nibbles<0>(words_from<o + 4>(pieces), sink);
  }
};

struct UnpackQ5_0 : SimpleUnits<UnpackQ5_0, sizeof(BlockQ5_0)> {
  static constexpr Shape shape{32, 32, 16, 0, false};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    put_nibbles_and_bits(words_from<o + 6>(pieces), pieces.template word<o + 2>(), sink);
  }
};

struct UnpackQ5_1 : SimpleUnits<UnpackQ5_1, sizeof(BlockQ5_1)> {
  static constexpr Shape shape{32, 32, 0, 1, false};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    put<9>(sink, pieces.template half<o + 2>());
    put_nibbles_and_bits(words_from<o + 8>(pieces), pieces.template word<o + 4>(), sink);
  }
};

struct UnpackQ8_0 : SimpleUnits<UnpackQ8_0, sizeof(BlockQ8_0)> {
  static constexpr Shape shape{32, 32, 128, 0, true};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    unroll<8>([&](auto i) __attribute__((always_inline)) {
      put<i.value>(sink,
                   _mm512_xor_si512(pieces.template word<o + 2 + 4 * decltype(i)::value>(), bytes(0x80)));
    });
  }
};

struct UnpackIQ4_NL : SimpleUnits<UnpackIQ4_NL, sizeof(BlockIQ4_NL)> {
  static constexpr Shape shape{32, 32, 128, 0, true};
  template <class P, int o, class Sink>
  TANDEM_INLINE static void put_unit(const P& pieces, Index<o>, Sink& sink) {
    put<8>(sink, pieces.template half<o>());
    put_levels<0>(words_from<o + 2>(pieces), level_table<128>(kvalues_iq4nl), sink);
  }
};

// Words as they were loaded, from number `first` on.
template <int first = 0, class Words>
TANDEM_INLINE auto words_of(const Words& q) {
  return [&q](auto offset) __attribute__((always_inline)) {
    return q.w[first + decltype(offset)::value / 4];
  };
}

// 17 bytes: words are not aligned, so each is loaded at its own address.
struct UnpackMXFP4 {
  static constexpr Shape shape{32, 32, 12, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockMXFP4);
  static constexpr int pauses = 1;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    sink.pause();
    // As e8m0_to_fp32_half: subnormal for e < 2.
    const __m512i e = _mm512_and_si512(rows.words(at), _mm512_set1_epi32(0xff));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    put<8>(sink, _mm512_mask_mov_epi32(normal, is_small, small));
    const Words4 q = load_words4(rows, at + 1);
    put_levels<0>(words_of(q), level_table<12>(kvalues_mxfp4), sink);
  }
};

// Byte b of every lane's word.
template <int b>
TANDEM_INLINE __m512i byte_of(__m512i words) {
  return _mm512_and_si512(_mm512_srli_epi32(words, 8 * b), _mm512_set1_epi32(0xff));
}

// E4M3 codes in words of 16 bits, of which the low 7 count, to halves of the numbers of e4m3_to_fp32_half(). These are those of halves with
// the same bits times 2^7; of subnormal ones, and of the NaN, a table.
TANDEM_INLINE __m512i e4m3_to_halves(__m512i codes) {
  const __m512i table = _mm512_setr_epi32(0x14000000, 0x1a001800, 0x1d001c00, 0x1f001e00, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x7e000000);
  const __m512i code = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(code, 7), _mm512_set1_epi16(7 << 10));
  const __m512i from_8 = _mm512_sub_epi16(code, _mm512_set1_epi16(8));
  const __mmask32 other = _mm512_cmpge_epu16_mask(from_8, _mm512_set1_epi16(0x7f - 8));
  return _mm512_mask_permutexvar_epi16(normal, other, code, table);
}

// Blocks of two units, whose 16 columns have a scale each.
struct UnpackNVFP4 {
  static constexpr Shape shape{32, 16, 12, 0, false};
  static constexpr int64_t block_units = 2;
  static constexpr size_t block_bytes = sizeof(BlockNVFP4);
  static constexpr int pauses = 1;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    sink.pause();
    const __m512i d = rows.words(at);
    const Words8 q = load_words8(rows, at + 4);
    const __m512i levels = level_table<12>(kvalues_mxfp4);
    unroll<block_units>([&](auto u) __attribute__((always_inline)) {
      auto unit = sink.template unit<u.value>();
      unroll<2>([&](auto half) __attribute__((always_inline)) {
        constexpr int h = decltype(half)::value, s = 2 * decltype(u)::value + h;
        put<5 * h + 4>(unit, low_halves(e4m3_to_halves(byte_of<s>(d))));
        put<5 * h>(unit, _mm512_shuffle_epi8(levels, low_nibbles(q.w[2 * s])));
        put<5 * h + 1>(unit, _mm512_shuffle_epi8(levels, low_nibbles(q.w[2 * s + 1])));
        put<5 * h + 2>(unit, _mm512_shuffle_epi8(levels, high_nibbles(q.w[2 * s])));
        put<5 * h + 3>(unit, _mm512_shuffle_epi8(levels, high_nibbles(q.w[2 * s + 1])));
      });
      unit.finish();
    });
  }
};

// Blocks of four units with one scale. Weights are 0 and 2, less 1.
struct UnpackQ1_0 {
  static constexpr Shape shape{32, 32, 1, 0, false};
  static constexpr int64_t block_units = 4;
  static constexpr size_t block_bytes = sizeof(BlockQ1_0);
  static constexpr int pauses = 1;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    sink.pause();
    const __m512 d = low_halves(rows.words(at));
    const Words4 bits = load_words4(rows, at + 2);
    unroll<block_units>([&](auto u) __attribute__((always_inline)) {
      auto unit = sink.template unit<u.value>();
      put<8>(unit, d);
      unroll<8>([&](auto i) __attribute__((always_inline)) {
        const __m512i four = bits_to_bit4(_mm512_srli_epi32(bits.w[u.value], 4 * i.value));
        put<i.value>(unit, _mm512_srli_epi16(four, 3));
      });
      unit.finish();
    });
  }
};

// The same as a float.
template <int b>
TANDEM_INLINE __m512 unsigned_byte(__m512i words) {
  return _mm512_cvtepi32_ps(byte_of<b>(words));
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
// Pairs of bytes shifted right by n, or left by -n.
template <int n>
TANDEM_INLINE __m512i shifted(__m512i v) {
  if constexpr (n > 0) return _mm512_srli_epi16(v, static_cast<unsigned>(n));
  if constexpr (n < 0) return _mm512_slli_epi16(v, static_cast<unsigned>(-n));
  return v;
}
// Every byte shifted so, with what the mask leaves of it.
template <int n>
TANDEM_INLINE __m512i shift_and_mask(__m512i v, __m512i mask) {
  return _mm512_and_si512(shifted<n>(v), mask);
}

// Header of Q4_K and Q5_K: d, dmin, eight six-bit scales and mins.
template <class Sink>
TANDEM_INLINE void put_header_k4(const StripRows& rows, size_t at, Sink& sink) {
  const Words4 h = load_words4(rows, at);
  const __m512 d = low_halves(h.w[0]);
  const __m512i sixes = bytes(0x3f), top = bytes(0x30);
  const __m512i scales[2] = {_mm512_and_si512(h.w[1], sixes),
                             _mm512_or_si512(low_nibbles(h.w[3]), shift_and_mask<2>(h.w[1], top))};
  const __m512i mins[2] = {_mm512_and_si512(h.w[2], sixes),
                           _mm512_or_si512(high_nibbles(h.w[3]), shift_and_mask<2>(h.w[2], top))};
  unroll<8>([&](auto s) __attribute__((always_inline)) {
    constexpr int i = decltype(s)::value;
    put<9 * i + 8>(sink, _mm512_mul_ps(unsigned_byte<i % 4>(scales[i / 4]), d));
  });
  unroll<4>([&](auto p) __attribute__((always_inline)) {
    constexpr int i = decltype(p)::value;
    put<72 + i>(sink, byte_pair<i % 2>(mins[i / 2]));
  });
  put<76>(sink, high_halves(h.w[0]));
}

struct UnpackQ4_K {
  static constexpr Shape shape{256, 32, 0, 8, false};
  static constexpr size_t block_bytes = sizeof(BlockQ4_K);
  static constexpr int pauses = 4;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    put_header_k4(rows, at, sink);
    unroll<4>([&](auto chunk) __attribute__((always_inline)) {
      constexpr int c = decltype(chunk)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 16 + 32 * c);
      unroll<8>([&](auto i) __attribute__((always_inline)) {
        put<18 * c + i.value>(sink, low_nibbles(q.w[i.value]));
        put<18 * c + 9 + i.value>(sink, high_nibbles(q.w[i.value]));
      });
    });
  }
};

struct UnpackQ5_K {
  static constexpr Shape shape{256, 32, 0, 8, false};
  static constexpr size_t block_bytes = sizeof(BlockQ5_K);
  static constexpr int pauses = 4;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    put_header_k4(rows, at, sink);
    const __m512i bit4 = bytes(0x10);
    const Words8 high =
        load_words8(rows, at + 16);  // bit 2c for the low nibbles of chunk c, 2c + 1 for the high ones
    unroll<4>([&](auto chunk) __attribute__((always_inline)) {
      constexpr int c = decltype(chunk)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 48 + 32 * c);
      unroll<8>([&](auto i) __attribute__((always_inline)) {
        const __m512i bits = high.w[i.value];
        put<18 * c + i.value>(
            sink, _mm512_or_si512(low_nibbles(q.w[i.value]), shift_and_mask<2 * c - 4>(bits, bit4)));
        put<18 * c + 9 + i.value>(
            sink, _mm512_or_si512(high_nibbles(q.w[i.value]), shift_and_mask<2 * c - 3>(bits, bit4)));
      });
    });
  }
};

struct UnpackQ6_K {
  static constexpr Shape shape{256, 16, 32, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockQ6_K);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const Words4 scales = load_words4(rows, at + 192);
    const __m512 d = high_halves(rows.words(at + 206));  // d is the last two bytes: never read past them
    unroll<16>([&](auto s) __attribute__((always_inline)) {
      constexpr int i = decltype(s)::value;
      put<5 * i + 4>(sink, _mm512_mul_ps(signed_byte<i % 4>(scales.w[i / 4]), d));
    });
    const __m512i bits45 = bytes(0x30);
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 a = load_words8(rows, at + 64 * h), b = load_words8(rows, at + 64 * h + 32);
      const Words8 high = load_words8(rows, at + 128 + 32 * h);
      unroll<8>([&](auto i) __attribute__((always_inline)) {
        constexpr int to = 40 * h + i.value + i.value / 4;  // sub-blocks are 4 vectors and a scale
        const __m512i bits = high.w[i.value];
        put<to>(sink, _mm512_or_si512(low_nibbles(a.w[i.value]), shift_and_mask<-4>(bits, bits45)));
        put<to + 10>(sink, _mm512_or_si512(low_nibbles(b.w[i.value]), shift_and_mask<-2>(bits, bits45)));
        put<to + 20>(sink, _mm512_or_si512(high_nibbles(a.w[i.value]), shift_and_mask<0>(bits, bits45)));
        put<to + 30>(sink, _mm512_or_si512(high_nibbles(b.w[i.value]), shift_and_mask<2>(bits, bits45)));
      });
    });
  }
};

// Byte b of every lane's word, in both of its 16-bit halves.
template <int b>
TANDEM_INLINE __m512i twice_byte(__m512i words) {
  constexpr int pattern = static_cast<int>(0x80008000u) | b | b << 16;
  return _mm512_shuffle_epi8(
      words, _mm512_set4_epi32(pattern + 0x000c000c, pattern + 0x00080008, pattern + 0x00040004, pattern));
}

// Scale and quant have so few bits that their product fits a byte: it goes into the panel, and a whole
// super-block needs one float scale.
struct UnpackQ2_K {
  static constexpr Shape shape{256, 256, 0, 16, false};
  static constexpr size_t block_bytes = sizeof(BlockQ2_K);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const Words4 header = load_words4(rows, at);
    const __m512i d_dmin = rows.words(at + 80), twos = bytes(3);
    put<64>(sink, low_halves(d_dmin));
    unroll<8>([&](auto p) __attribute__((always_inline)) {
      constexpr int i = decltype(p)::value;
      put<65 + i>(sink, byte_pair<i % 2>(high_nibbles(header.w[i / 2])));
    });
    put<73>(sink, high_halves(d_dmin));
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 16 + 32 * h);
      unroll<8>([&](auto sub) __attribute__((always_inline)) {  // of 16 columns
        constexpr int s = 8 * h + decltype(sub)::value, plane = s / 2 % 4, first = s % 2 * 4;
        const __m512i scale = twice_byte<s % 4>(low_nibbles(header.w[s / 4]));
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          // Two bytes in one 16-bit product: no carry, 3 * 15 < 256.
          const __m512i two_bits = shift_and_mask<2 * plane>(q.w[first + i.value], twos);
          put<4 * s + i.value>(sink, _mm512_mullo_epi16(two_bits, scale));
        });
      });
    });
  }
};

// (q - 4) * (scale - 32) is -124..128: a byte, with an offset of 124. The two low bits of q choose among four
// such bytes of the row, in a lookup that four rows share; the third bit adds 4 * (scale - 32).
struct UnpackQ3_K {
  static constexpr Shape shape{256, 256, 124, 0, true};
  static constexpr size_t block_bytes = sizeof(BlockQ3_K);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    // Scales are bytes 96..107 and d the last two, 108..109: read 16 bytes that end there.
    const Words4 t = load_words4(rows, at + 94);
    const auto join = [](__m512i a, __m512i b) __attribute__((always_inline)) {
      return _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_slli_epi32(b, 16));
    };
    const __m512i packed[3] = {join(t.w[0], t.w[1]), join(t.w[1], t.w[2]), join(t.w[2], t.w[3])};
    put<64>(sink, high_halves(t.w[3]));
    const __m512i top = bytes(0x30), zero_point = bytes(32);
    const __m512i scales[4] = {
        _mm512_sub_epi8(_mm512_or_si512(low_nibbles(packed[0]), shift_and_mask<-4>(packed[2], top)),
                        zero_point),
        _mm512_sub_epi8(_mm512_or_si512(low_nibbles(packed[1]), shift_and_mask<-2>(packed[2], top)),
                        zero_point),
        _mm512_sub_epi8(_mm512_or_si512(high_nibbles(packed[0]), shift_and_mask<0>(packed[2], top)),
                        zero_point),
        _mm512_sub_epi8(_mm512_or_si512(high_nibbles(packed[1]), shift_and_mask<2>(packed[2], top)),
                        zero_point)};
    const __m512i twos = bytes(3);
    const __m512i row_of_four = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xff00ff00u));
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const Words8 mask = load_words8(rows, at);
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 32 + 32 * h);
      unroll<8>([&](auto sub) __attribute__((always_inline)) {  // of 16 columns
        constexpr int s = 8 * h + decltype(sub)::value, plane = s / 2 % 4, first = s % 2 * 4;
        const __m512i scale = _mm512_shuffle_epi8(scales[s / 4], _mm512_add_epi8(row_of_four, bytes(s % 4)));
        const __m512i twice = _mm512_add_epi8(scale, scale), four_times = _mm512_add_epi8(twice, twice);
        // Bytes 0, 1, 2, 3 times the scale, each plus 124 - 4 * scale. Modulo 256 all the way.
        const __m512i multiples =
            _mm512_add_epi8(_mm512_and_si512(scale, odd), _mm512_and_si512(twice, upper));
        const __m512i table = _mm512_add_epi8(multiples, _mm512_sub_epi8(bytes(124), four_times));
        unroll<4>([&](auto i) __attribute__((always_inline)) {
          const __m512i index =
              _mm512_or_si512(shift_and_mask<2 * plane>(q.w[first + i.value], twos), row_of_four);
          const __m512i value = _mm512_shuffle_epi8(table, index);
          const __mmask64 bit2 = _mm512_test_epi8_mask(mask.w[first + i.value], bytes(1 << (4 * h + plane)));
          put<4 * s + i.value>(sink, _mm512_mask_add_epi8(value, bit2, value, four_times));
        });
      });
    });
  }
};

struct UnpackTQ2_0 {
  static constexpr Shape shape{256, 256, 1, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockTQ2_0);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    put<64>(sink, high_halves(rows.words(at + 62)));  // d: the last two bytes
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 32 * h);
      unroll<4>([&](auto plane) __attribute__((always_inline)) {
        unroll<8>([&](auto i) __attribute__((always_inline)) {
          put<32 * h + 8 * plane.value + i.value>(sink, shift_and_mask<2 * plane.value>(q.w[i.value], bytes(3)));
        });
      });
    });
  }
};

struct UnpackIQ4_XS {
  static constexpr Shape shape{256, 32, 128, 0, true};
  static constexpr size_t block_bytes = sizeof(BlockIQ4_XS);
  static constexpr int pauses = 4;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512i d_high = rows.words(at), low = rows.words(at + 4);  // d, scales_h; scales_l
    const __m512 d = low_halves(d_high);
    const __m512i levels = level_table<128>(kvalues_iq4nl);
    unroll<8>([&](auto sub) __attribute__((always_inline)) {
      constexpr int s = decltype(sub)::value;
      const __m512i low4 = _mm512_and_si512(_mm512_srli_epi32(low, 4 * s), _mm512_set1_epi32(0x0f));
      const __m512i high2 = _mm512_and_si512(_mm512_srli_epi32(d_high, 16 + 2 * s), _mm512_set1_epi32(3));
      const __m512i six = _mm512_or_si512(low4, _mm512_slli_epi32(high2, 4));
      put<9 * s + 8>(sink,
                     _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))), d));
    });
    unroll<4>([&](auto pair) __attribute__((always_inline)) {  // of sub-blocks
      constexpr int p = decltype(pair)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 8 + 32 * p);
      put_levels<18 * p>(words_of<0>(q), levels, sink);
      put_levels<18 * p + 9>(words_of<4>(q), levels, sink);
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
